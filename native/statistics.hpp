// The statistics of solved frames: a and b of Algorithm 1. They are sums over frames, so here bins
// lie in the SIMD lanes.
#pragma once

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
        for (size_t row = first; row < last; row += N) {
            const size_t n = last - row < N ? last - row : N;
            load_rows(row, n);
            for (size_t bin = 0; bin < p.row_stride; bin += N) {
                const size_t vectors = (p.row_stride - bin) / L;
                with_vectors(vectors < VECTORS ? vectors : VECTORS,
                             [&](auto v) { accumulate_panel<v>(bin, n, sums); });
            }
            if (p.penalty != Penalty::none) accumulate_penalty_gradient(n, sums);
            if constexpr (!IS) accumulate_activations(n, sums);
        }
    }

  private:
    static constexpr size_t L = LANES<T>;
    static constexpr size_t N = VECTORS * L;  // frames, and bins, at a time
    static constexpr bool IS = LOSS == Loss::itakura_saito;

    const Problem<T>& p;
    const Frames<T>& frames;
    size_t n_workspace;

    T* target;    // (N, row_stride): v + ε
    T* point;     // (n_components, N): activations
    T* by_frame;  // (N, n_rows): the same, and the background's
    T* inverse;   // (N, N): 1 / y; IS alone
    T* weighted;  // (N, N): v / y², or v / y for KL
    T* slopes;    // (n_groups, N): of the penalty

    void lay_out(T* workspace) {
        n_workspace = 0;
        const auto take = [&](size_t n_rows) {
            T* const taken = workspace ? workspace + n_workspace : nullptr;
            n_workspace += n_rows * N;
            return taken;
        };
        target = take(p.row_stride);
        point = take(p.n_components);
        by_frame = take(p.n_rows);
        inverse = take(IS ? N : 0);
        weighted = take(N);
        slopes = take(p.n_groups);
    }

    void load_rows(size_t first, size_t n) {
        const size_t n_components = p.n_components, n_rows = p.n_rows;
        for (size_t i = 0; i < n; ++i) {
            const T* const values = frames.values + (first + i) * p.n_bins;
            T* const row = target + i * p.row_stride;
            for (size_t bin = 0; bin < p.n_bins; ++bin) row[bin] = values[bin] + p.floor;
            for (size_t bin = p.n_bins; bin < p.row_stride; ++bin) row[bin] = p.floor;
            const T* const h = frames.activations + (first + i) * n_components;
            for (size_t k = 0; k < n_components; ++k)
                by_frame[i * n_rows + k] = point[k * N + i] = h[k];
            if (frames.background)
                by_frame[i * n_rows + n_components] = frames.background[first + i];
        }
    }

    template <size_t V>
    [[gnu::flatten]] void accumulate_panel(size_t bin, size_t n, ChunkSums<T>& sums) {
        Divergence<T, LOSS> divergence[V];
        by_rows(n, [&](size_t row, auto rows) {
            product<rows, V>(
                by_frame + row * p.n_rows, p.n_rows, p.rows + bin, p.row_stride, p.n_rows,
                [&](size_t, size_t) { return all(p.floor); },
                [&](size_t r, size_t v, Vec<T> model) {
                    const Vec<T> value = at(target + (row + r) * p.row_stride + bin + v * L);
                    const size_t i = (row + r) * N + v * L;
                    const Vec<T> ratio = weigh<LOSS>(value, model, inverse + i, weighted + i);
                    divergence[v].add(value, model, ratio);
                },
                nothing);
        });
        const auto add = [&](const T* x, T* to) {
            by_rows(p.n_components, [&](size_t row, auto rows) {
                add_product<rows, V>(point + row * N, N, x, N, n, to + row * p.row_stride + bin,
                                     p.row_stride, nothing);
            });
        };
        add(weighted, sums.weighted);
        if constexpr (IS) add(inverse, sums.inverse);
        for (size_t v = 0; v < V; ++v) {
            double each[L] = {};
            divergence[v].finish(each, n);
            for (size_t i = 0; i < L; ++i) sums.divergence += each[i];
        }
    }

    // For KL Σ h y^(β−1) is Σ h, the same in all bins.
    void accumulate_activations(size_t n, ChunkSums<T>& sums) {
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t i = 0; i < n; ++i) sums.activations[k] += double(point[k * N + i]);
    }

    void accumulate_penalty_gradient(size_t n, ChunkSums<T>& sums) {
        alignas(VECTOR_BYTES) T value[N];
        penalise<VECTORS, N>(p, point, slopes, value);
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t i = 0; i < n; ++i)
                sums.penalty_gradient[k] += double(slopes[p.groups[k] * N + i] * point[k * N + i]);
    }
};

}  // namespace ondes::ONDES_ISA
