// The statistics of solved frames: a and b of Algorithm 1. They are sums over frames, so here bins
// lie in the SIMD lanes.
#pragma once

#include <algorithm>

#include "divergence.hpp"
#include "penalty.hpp"
#include "problem.hpp"
#include "product.hpp"

namespace ondes::ONDES_ISA {

template <class T, Loss LOSS> class Summation {
  public:
    Summation(const Problem<T>& problem, const Frames<T>& frames, T* workspace)
        : p(problem), frames(frames) {
        lay_out(workspace);
    }

    static size_t workspace_size(const Problem<T>& problem) {
        return Summation(problem, Frames<T>{}, nullptr).n_workspace;
    }

    // Adds to `sums`, by the activations that are in `frames`.
    void accumulate(size_t first, size_t last, ChunkSums<T>& sums) {
        const size_t n_vectors = p.row_stride / L;
        const size_t n_panels = (n_vectors + VECTORS - 1) / VECTORS;
        for (size_t row = first; row < last; row += N) {
            const size_t n = last - row < N ? last - row : N;
            load_rows(row, n);
            for (size_t i = 0; i < n_panels; ++i) {  // as even as can be
                const size_t begin = n_vectors * i / n_panels;
                const size_t end = n_vectors * (i + 1) / n_panels;
                with_vectors(end - begin, [&](auto v) { accumulate_panel<v>(begin * L, n, sums); });
            }
            if (p.penalty != Penalty::none) accumulate_penalty_gradient(n, sums);
            if constexpr (!IS) accumulate_activations(n, sums);
        }
    }

  private:
    static constexpr size_t L = LANES<T>;
    static constexpr size_t N = VECTORS * L;  // frames, and most bins, at a time
    static constexpr bool IS = LOSS == Loss::itakura_saito;

    const Problem<T>& p;
    const Frames<T>& frames;
    size_t n_workspace;

    const T* values;     // (n, n_bins): of these frames
    const T* by_frame;   // (n, n_rows): activations, and the background's
    T* with_background;  // (N, n_rows): the same where there is a background
    T* point;            // (n_components, N): activations
    T* rest;             // (N, L): the bins that fill no vector
    T* inverse;          // (N, N): y, then 1 / y; IS alone
    T* weighted;         // (N, N): v / y²; for KL y, then v / y
    T* slopes;           // (n_groups, N): of the penalty

    void lay_out(T* workspace) {
        n_workspace = 0;
        const auto take = [&](size_t n_rows) {
            T* const taken = workspace ? workspace + n_workspace : nullptr;
            n_workspace += n_rows * N;
            return taken;
        };
        with_background = take(p.n_rows);
        point = take(p.n_components);
        rest = take(L);
        inverse = take(IS ? N : 0);
        weighted = take(N);
        slopes = take(p.n_groups);
    }

    void load_rows(size_t first, size_t n) {
        const size_t n_components = p.n_components, n_rows = p.n_rows, whole = p.n_bins / L * L;
        const T* const h = frames.activations + first * n_components;
        values = frames.values + first * p.n_bins;
        by_frame = frames.background ? with_background : h;
        for (size_t i = 0; i < n; ++i) {
            for (size_t k = 0; k < n_components; ++k) point[k * N + i] = h[i * n_components + k];
            for (size_t bin = whole; bin < p.row_stride; ++bin)
                rest[i * L + bin - whole] = bin < p.n_bins ? values[i * p.n_bins + bin] : 0;
            if (!frames.background) continue;
            std::copy_n(h + i * n_components, n_components, with_background + i * n_rows);
            with_background[i * n_rows + n_components] = frames.background[first + i];
        }
    }

    template <size_t V>
    [[gnu::flatten]] void accumulate_panel(size_t bin, size_t n, ChunkSums<T>& sums) {
        const bool is_whole = bin + V * L <= p.n_bins;
        const auto target = [&](size_t i, size_t v) {
            const bool in_rest = v == V - 1 && !is_whole;
            const T* const from = values + i * p.n_bins + bin + v * L;
            return (in_rest ? at(rest + i * L) : loose(from)) + p.floor;
        };
        T* const y = IS ? inverse : weighted;
        Vec<T> excess = {};  // Σ y − v
        const auto divide = [&](size_t i, size_t v, Vec<T> model) {
            const Vec<T> value = target(i, v);
            weigh<LOSS>(value, model, inverse + i * N + v * L, weighted + i * N + v * L);
            if constexpr (!IS) excess += model - value;
        };
        by_rows(n, [&](size_t row, auto rows) {
            product<rows, V>(
                by_frame + row * p.n_rows, p.n_rows, p.rows + bin, p.row_stride, p.n_rows,
                [&](size_t, size_t) { return all(p.floor); },
                [&](size_t r, size_t v, Vec<T> model) {
                    if (v < DIRECT) divide(row + r, v, model);
                    else at(y + (row + r) * N + v * L) = model;
                },
                nothing);
        });
        const auto divide_row = [&](size_t i) {
            if (i < n)
                for (size_t v = DIRECT; v < V; ++v) divide(i, v, at(y + i * N + v * L));
        };
        const auto add_rows = [&](const T* x, T* to, size_t row, auto rows, auto beside) {
            add_product<rows, V>(point + row * N, N, x, N, n, to + row * p.row_stride + bin,
                                 p.row_stride, beside);
        };
        const auto add = [&](const T* x, T* to, size_t first) {
            by_rows(p.n_components - first, [&](size_t row, auto rows) {
                add_rows(x, to, first + row, rows, nothing);
            });
        };
        for (size_t i = 0; i < AHEAD; ++i) divide_row(i);
        const size_t first = p.n_components < ROWS ? p.n_components : ROWS;
        by_rows(first, [&](size_t, auto rows) {
            add_rows(weighted, sums.weighted, 0, rows, [&](size_t i) { divide_row(i + AHEAD); });
        });
        add(weighted, sums.weighted, first);
        if constexpr (IS) add(inverse, sums.inverse, 0);
        double each[L] = {};
        for (size_t i = 0; i < L; ++i) each[i] = excess[i];
        for (size_t v = 0; v < V; ++v) {
            Divergence<T, LOSS> divergence;
            const T* const x = (IS ? inverse : weighted) + v * L;
            for (size_t i = 0; i < n; ++i) divergence.add(target(i, v), at(x + i * N));
            divergence.finish(each, n);
        }
        for (size_t i = 0; i < L; ++i) sums.divergence += each[i];
    }

    // For KL Σ h y^(β−1) is Σ h, the same in all bins.
    void accumulate_activations(size_t n, ChunkSums<T>& sums) {
        for (size_t i = 0; i < n; ++i)
            for (size_t k = 0; k < p.n_components; ++k)
                sums.activations[k] += double(by_frame[i * p.n_rows + k]);
    }

    void accumulate_penalty_gradient(size_t n, ChunkSums<T>& sums) {
        alignas(VECTOR_BYTES) T value[N];
        // Lanes without a frame are computed all the same: let them be harmless.
        for (size_t k = 0; k < p.n_components; ++k)
            std::fill(point + k * N + n, point + (k + 1) * N, T(1));
        penalise<VECTORS, N>(p, point, slopes, value);
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t i = 0; i < n; ++i)
                sums.penalty_gradient[k] += double(slopes[p.groups[k] * N + i] * point[k * N + i]);
    }
};

template <class T, Loss LOSS>
void add_sums(const Problem<T>& p, const ChunkSums<T>& sums, const Totals& totals) {
    for (size_t k = 0; k < p.n_components; ++k) {
        double* const weighted = totals.weighted + k * p.n_bins;
        double* const inverse = totals.inverse + k * p.n_bins;
        for (size_t bin = 0; bin < p.n_bins; ++bin)
            weighted[bin] += double(sums.weighted[k * p.row_stride + bin]);
        for (size_t bin = 0; bin < p.n_bins; ++bin)
            inverse[bin] += LOSS == Loss::itakura_saito
                                ? double(sums.inverse[k * p.row_stride + bin])
                                : sums.activations[k];
        totals.penalty_gradient[k] += sums.penalty_gradient[k];
    }
    *totals.divergence += sums.divergence;
}

}  // namespace ondes::ONDES_ISA
