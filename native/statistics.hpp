// The statistics of solved frames: a and b of Algorithm 1. They are sums over frames, so here bins
// lie in the SIMD lanes, and threads share the bins: nothing is added up among them.
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

    static size_t n_panels(const Problem<T>& problem) {
        return (problem.row_stride / L + VECTORS - 1) / VECTORS;
    }

    void add_panels(const Chunks<T>& chunks, size_t first, size_t last, const Totals& totals) {
        const size_t begin = first_bin(first), end = first_bin(last);
        each_chunk(chunks, [&](size_t from, size_t to) {
            for (size_t k = 0; k < p.n_components; ++k) {
                std::fill_n(chunks.weighted + k * p.row_stride + begin, end - begin, T(0));
                if (IS) std::fill_n(chunks.inverse + k * p.row_stride + begin, end - begin, T(0));
            }
            each_tile(from, to, [&](size_t row, size_t n) {
                load_rows(row, n);
                for (size_t i = first; i < last; ++i) {
                    double* const each = chunks.divergences + (row / N * chunks.n_panels + i) * L;
                    with_vectors<VECTORS>((first_bin(i + 1) - first_bin(i)) / L, [&](auto v) {
                        add_panel<v>(first_bin(i), n, chunks, each);
                    });
                }
            });
            add_chunk(chunks, begin, std::min(end, p.n_bins), totals);
        });
    }

    // What is no sum for each bin; threads do not share it.
    void add_rest(const Chunks<T>& chunks, const Totals& totals) {
        const bool penalised = p.penalty != Penalty::none;
        if (IS && !penalised) return;
        double *const slope = chunks.rest, *const activation = slope + p.n_components;
        each_chunk(chunks, [&](size_t from, size_t to) {
            std::fill_n(chunks.rest, 2 * p.n_components, 0.0);
            each_tile(from, to, [&](size_t row, size_t n) {
                if (!IS) add_activations(row, n, activation);
                if (!penalised) return;
                load_rows(row, n);
                add_penalty_gradient(n, slope);
            });
            for (size_t k = 0; k < p.n_components; ++k) {
                totals.penalty_gradient[k] += slope[k];
                if (!IS) totals.inverse[k] += activation[k];
            }
        });
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

    // As even as can be.
    size_t first_bin(size_t panel) const {
        return p.row_stride / L * panel / n_panels(p) * L;
    }

    template <class Body> static void each_chunk(const Chunks<T>& chunks, Body body) {
        for (size_t first = 0; first < chunks.n_frames; first += chunks.length)
            body(first, std::min(first + chunks.length, chunks.n_frames));
    }

    template <class Body> static void each_tile(size_t first, size_t last, Body body) {
        for (; first < last; first += N) body(first, std::min(last - first, N));
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
    [[gnu::flatten]] void add_panel(size_t bin, size_t n, const Chunks<T>& sums, double* each) {
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
        by_rows<ROWS_OF<V>>(n, [&](size_t row, auto rows) {
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
            by_rows<ROWS_OF<V>>(p.n_components - first, [&](size_t row, auto rows) {
                add_rows(x, to, first + row, rows, nothing);
            });
        };
        for (size_t i = 0; i < AHEAD; ++i) divide_row(i);
        const size_t first = first_rows<V>(p.n_components);
        by_rows<ROWS_OF<V>>(first, [&](size_t, auto rows) {
            add_rows(weighted, sums.weighted, 0, rows, [&](size_t i) { divide_row(i + AHEAD); });
        });
        add(weighted, sums.weighted, first);
        if constexpr (IS) add(inverse, sums.inverse, 0);
        for (size_t i = 0; i < L; ++i) each[i] = excess[i];
        for (size_t v = 0; v < V; ++v) {
            Divergence<T, LOSS> divergence;
            const T* const x = (IS ? inverse : weighted) + v * L;
            for (size_t i = 0; i < n; ++i) divergence.add(target(i, v), at(x + i * N));
            divergence.finish(each, n);
        }
    }

    // For KL Σ h y^(β−1) is Σ h, the same in all bins.
    void add_activations(size_t first, size_t n, double* sums) const {
        const T* h = frames.activations + first * p.n_components;
        for (size_t i = 0; i < n; ++i, h += p.n_components)
            for (size_t k = 0; k < p.n_components; ++k) sums[k] += double(h[k]);
    }

    void add_penalty_gradient(size_t n, double* sums) {
        alignas(VECTOR_BYTES) T value[N];
        // Lanes without a frame are computed all the same: let them be harmless.
        for (size_t k = 0; k < p.n_components; ++k)
            std::fill(point + k * N + n, point + (k + 1) * N, T(1));
        penalise<VECTORS, N>(p, point, slopes, value);
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t i = 0; i < n; ++i)
                sums[k] += double(slopes[p.groups[k] * N + i] * point[k * N + i]);
    }

    void add_chunk(const Chunks<T>& chunks, size_t begin, size_t end, const Totals& totals) const {
        const auto add = [&](const T* chunk, double* total) {
            for (size_t k = 0; k < p.n_components; ++k)
                for (size_t bin = begin; bin < end; ++bin)
                    total[k * p.n_bins + bin] += double(chunk[k * p.row_stride + bin]);
        };
        add(chunks.weighted, totals.weighted);
        if constexpr (IS) add(chunks.inverse, totals.inverse);
    }
};

}  // namespace ondes::ONDES_ISA
