// The statistics of solved frames: a and b of Algorithm 1. They are sums over frames, so here bins
// lie in the SIMD lanes, and threads share the bins: nothing is added up among them.
#pragma once

#include <algorithm>

#include "divergence.hpp"
#include "penalty.hpp"
#include "problem.hpp"
#include "product.hpp"

namespace ondes::ONDES_ISA {

template <class T, Loss LOSS, Weights WEIGHTS = Weights::none> class Summation {
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
                if (BELOW) std::fill_n(chunks.inverse + k * p.row_stride + begin, end - begin, T(0));
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
        if (BELOW && !penalised) return;
        double *const slope = chunks.rest, *const activation = slope + p.n_components;
        each_chunk(chunks, [&](size_t from, size_t to) {
            std::fill_n(chunks.rest, 2 * p.n_components, 0.0);
            each_tile(from, to, [&](size_t row, size_t n) {
                if (!BELOW) add_activations(row, n, activation);
                if (!penalised) return;
                load_rows(row, n, false);
                add_penalty_gradient(row, n, slope);
            });
            for (size_t k = 0; k < p.n_components; ++k) {
                totals.penalty_gradient[k] += slope[k];
                if (!BELOW) totals.inverse[k] += activation[k];
            }
        });
    }

  private:
    static constexpr size_t L = LANES<T>;
    static constexpr size_t N = VECTORS * L;  // frames, and most bins, at a time
    static constexpr bool IS = LOSS == Loss::itakura_saito;
    static constexpr bool WEIGHTED = WEIGHTS != Weights::none;
    static constexpr bool OF_ENTRIES = WEIGHTS == Weights::entries;
    static constexpr bool BELOW = IS || OF_ENTRIES;  // whether Σ h y^(β−1) differs between bins

    const Problem<T>& p;
    const Frames<T>& frames;
    size_t n_workspace;

    const T* values;     // (n, n_bins): of these frames
    const T* by_frame;   // (n, n_rows): activations, and the background's
    T* with_background;  // (N, n_rows): the same where there is a background
    T* point;            // (n_components, N): activations, by the weights of their frames
    T* rest;             // (N, L): the bins that fill no vector
    T* rest_weights;     // (N, L): their weights
    const T* weights;    // (n, n_bins): of the entries of these frames
    const T* counts;     // (n): of these frames, or null
    T* inverse;          // (N, N): y, then 1 / y or the weight; not for plain KL
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
        rest_weights = take(OF_ENTRIES ? L : 0);
        inverse = take(BELOW ? N : 0);
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

    void load_rows(size_t first, size_t n, bool by_weight = WEIGHTED) {
        const size_t n_components = p.n_components, n_rows = p.n_rows, whole = p.n_bins / L * L;
        const T* const h = frames.activations + first * n_components;
        values = frames.values + first * p.n_bins;
        by_frame = frames.background ? with_background : h;
        counts = WEIGHTED && frames.frame_weights ? frames.frame_weights + first : nullptr;
        if constexpr (OF_ENTRIES) weights = frames.weights + first * p.n_bins;
        for (size_t i = 0; i < n; ++i) {
            for (size_t k = 0; k < n_components; ++k) point[k * N + i] = h[i * n_components + k];
            if (by_weight && counts)
                for (size_t k = 0; k < n_components; ++k) point[k * N + i] *= counts[i];
            for (size_t bin = whole; bin < p.row_stride; ++bin)
                rest[i * L + bin - whole] = bin < p.n_bins ? values[i * p.n_bins + bin] : 0;
            if constexpr (OF_ENTRIES)
                for (size_t bin = whole; bin < p.row_stride; ++bin)
                    rest_weights[i * L + bin - whole] =
                        bin < p.n_bins ? weights[i * p.n_bins + bin] : 0;
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
        T* const y = BELOW ? inverse : weighted;
        Vec<T> excess = {};  // Σ y − v; of weighted frames their divergences
        const auto divide = [&](size_t i, size_t v, Vec<T> model) {
            const Vec<T> value = target(i, v);
            T *const below = inverse + i * N + v * L, *const above = weighted + i * N + v * L;
            weigh<LOSS>(value, model, below, above);
            if constexpr (WEIGHTED) {
                Vec<T> m = counts ? all(counts[i]) : all(T(1));
                const Vec<T> ratio = IS ? value * at(below) : at(above);
                const Vec<T> log_ratio = quick_log2<T>(ratio) * T(LOG_TWO);
                if constexpr (OF_ENTRIES) {
                    const bool in_rest = v == V - 1 && !is_whole;
                    const T* const from = weights + i * p.n_bins + bin + v * L;
                    const Vec<T> weight = in_rest ? at(rest_weights + i * L) : loose(from);
                    at(above) *= weight;
                    at(below) = IS ? at(below) * weight : weight;
                    m *= weight;
                }
                excess += m * (IS ? ratio - 1 - log_ratio : value * log_ratio + model - value);
            } else if constexpr (!IS) {
                excess += model - value;
            }
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
        if constexpr (BELOW) add(inverse, sums.inverse, 0);
        for (size_t i = 0; i < L; ++i) each[i] = excess[i];
        if constexpr (WEIGHTED) return;
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
            for (size_t k = 0; k < p.n_components; ++k) {
                double each = double(h[k]);
                if constexpr (WEIGHTED) each *= double(frames.frame_weights[first + i]);
                sums[k] += each;
            }
    }

    void add_penalty_gradient(size_t first, size_t n, double* sums) {
        alignas(VECTOR_BYTES) T value[N];
        // Lanes without a frame are computed all the same: let them be harmless.
        for (size_t k = 0; k < p.n_components; ++k)
            std::fill(point + k * N + n, point + (k + 1) * N, T(1));
        penalise<VECTORS, N>(p, point, slopes, value);
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t i = 0; i < n; ++i) {
                const double sum = double(slopes[p.groups[k] * N + i] * point[k * N + i]);
                if (WEIGHTED && frames.frame_weights)
                    sums[k] += sum * double(frames.frame_weights[first + i]);
                else
                    sums[k] += sum;
            }
    }

    void add_chunk(const Chunks<T>& chunks, size_t begin, size_t end, const Totals& totals) const {
        const auto add = [&](const T* chunk, double* total) {
            for (size_t k = 0; k < p.n_components; ++k)
                for (size_t bin = begin; bin < end; ++bin)
                    total[k * p.n_bins + bin] += double(chunk[k * p.row_stride + bin]);
        };
        add(chunks.weighted, totals.weighted);
        if constexpr (BELOW) add(chunks.inverse, totals.inverse);
    }
};

}  // namespace ondes::ONDES_ISA
