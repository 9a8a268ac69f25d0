// The inner solve of Kullback-Leibler for frames that are zero in most bins, and its statistics.
//
// Where v is zero only Σ y counts, which is Σ_k h_k Σ w_k: a constant of the denominator. The rows
// of the dictionary's other bins are gathered once per frame, twice: with bins in the lanes for y,
// with components in the lanes for Σ w v / y.
#pragma once

#include <algorithm>
#include <cmath>

#include "divergence.hpp"
#include "problem.hpp"
#include "product.hpp"
#include "transpose.hpp"

namespace ondes::ONDES_ISA {

// c[v] = Σ_j a[j] · x[j][v]; terms j, j + C, j + 2C … make a chain of their own, so that
// no sum waits for the one before it. `depth` is a multiple of C.
template <size_t C, size_t V, class T>
inline void chained(const T* a, const T* x, size_t stride, size_t depth, Vec<T>* c) {
    constexpr size_t L = LANES<T>;
    Vec<T> sum[C][V] = {};
    for (size_t j = 0; j < depth; j += C)
        for (size_t i = 0; i < C; ++i) {
            const Vec<T> weight = all(a[j + i]);
            for (size_t v = 0; v < V; ++v) sum[i][v] += weight * at(x + (j + i) * stride + v * L);
        }
    for (size_t v = 0; v < V; ++v) {
        Vec<T> total = sum[0][v];
        for (size_t i = 1; i < C; ++i) total += sum[i][v];
        c[v] = total;
    }
}

template <class T> class SparseSolver {
  public:
    // Numbers of components and of bins are rounded up to whole vectors, and to whole chains.
    static size_t padded(size_t n) { return (n + UNIT - 1) / UNIT * UNIT; }

    SparseSolver(const Problem<T>& problem, const SparseFrames<T>& frames, T* workspace)
        : p(problem), frames(frames), K(padded(problem.n_components)) {
        lay_out(workspace);
    }

    static size_t workspace_size(const Problem<T>& problem, const SparseFrames<T>& frames) {
        return SparseSolver(problem, frames, nullptr).n_workspace;
    }

    void solve(size_t first, size_t last) {
        for (size_t row = first; row < last; ++row) {
            gather(row);
            begin(row);
            bool is_solved = false;
            for (size_t i = 0; i < p.max_steps && !is_solved; ++i) is_solved = step();
            std::copy_n(here, p.n_components, frames.activations + row * p.n_components);
            if (frames.ratios) keep_ratios(row);
        }
    }

  private:
    static constexpr size_t L = LANES<T>, CHAINS = 4, UNIT = L > CHAINS ? L : CHAINS;
    static constexpr size_t FLUSH = 64;  // bins of a lane whose cost is summed before it is flushed

    const Problem<T>& p;
    const SparseFrames<T>& frames;
    const size_t K;
    size_t n_workspace;

    size_t n, N;      // bins of this frame, and rounded up
    T* by_bin;        // (N, K): the dictionary, bin by bin
    T* by_component;  // (K, N): the same, component by component
    T* target;        // (N): v + ε, and zeros behind it
    T* known;         // (N): ε and the background, and ones behind them
    T* ratio;         // (N): v / y
    T *point, *here, *next, *slope;  // (K); see Tile
    T* groups;                       // (n_groups)
    double lowest;
    size_t age;

    void lay_out(T* workspace) {
        n_workspace = 0;
        const auto take = [&](size_t size) {
            T* const taken = workspace ? workspace + n_workspace : nullptr;
            n_workspace += padded(size);
            return taken;
        };
        const size_t most = padded(frames.most);
        by_bin = take(most * K);
        by_component = take(most * K);
        target = take(most);
        known = take(most);
        ratio = take(most);
        point = take(K);
        here = take(K);
        next = take(K);
        slope = take(K);
        groups = take(p.n_groups);
    }

    void gather(size_t row) {
        const size_t from = frames.starts[row];
        n = frames.starts[row + 1] - from;
        N = padded(n);
        for (size_t j = 0; j < n; ++j) {
            const size_t bin = frames.bins[from + j];
            std::copy_n(p.columns + bin * K, K, by_bin + j * K);
            target[j] = frames.values[from + j] + p.floor;
            known[j] = p.floor;
            if (frames.spectrum) known[j] += frames.spectrum[bin] * frames.background[row];
        }
        std::fill(by_bin + n * K, by_bin + N * K, T(0));
        std::fill(target + n, target + N, T(0));
        std::fill(known + n, known + N, T(1));
        for (size_t j = 0; j < N; j += L) transpose(by_bin + j * K, K, T(0), by_component + j, N);
    }

    void begin(size_t row) {
        const T* const start = frames.start ? frames.start + row * p.n_components : nullptr;
        double total = double(p.floor) * double(p.n_bins - n);
        for (size_t j = 0; j < n; ++j) total += double(target[j]);
        const T even = T(total * double(*p.even_weights) / double(p.n_components));
        for (size_t k = 0; k < p.n_components; ++k)
            here[k] = std::max(start ? start[k] : even, p.activation_floor);
        std::fill(here + p.n_components, here + K, p.activation_floor);
        std::copy_n(here, K, point);
        std::fill_n(slope, K, T(0));
        lowest = std::numeric_limits<double>::infinity();
        age = 0;
    }

    // body(first, number of vectors) over `size` numbers.
    template <class Body> static void by_vectors(size_t size, Body body) {
        size_t i = 0;
        for (; i + 4 * L <= size; i += 4 * L) body(i, Count<4>{});
        if (i + 2 * L <= size) {
            body(i, Count<2>{});
            i += 2 * L;
        }
        if (i < size) body(i, Count<1>{});
    }

    // v / y of all bins; after(i) where those of a vector are there.
    template <class After> void divide(const T* h, After after) {
        const size_t depth = (p.n_components + CHAINS - 1) / CHAINS * CHAINS;
        by_vectors(N, [&](size_t j, auto vectors) {
            Vec<T> y[vectors];
            chained<vectors == 4 ? 2 : CHAINS, vectors>(h, by_component + j, N, depth, y);
            for (size_t i = j, v = 0; v < vectors; ++v, i += L) {
                at(ratio + i) = at(target + i) / (y[v] + at(known + i));
                after(i);
            }
        });
    }

    // Whether the frame is solved after this step.
    bool step() {
        StepCost<T, Loss::kullback_leibler> cost;
        divide(point, [&](size_t i) {
            if (p.n_momentum == 0) return;
            cost.add(at(target + i), at(ratio + i));
            if (i / L % FLUSH == FLUSH - 1) cost.flush(nullptr);
        });
        const double penalty = p.penalty == Penalty::none ? 0 : penalise();
        Vec<T> change = {}, linear = {};
        by_vectors(K, [&](size_t k, auto vectors) {
            Vec<T> above[vectors];
            chained<vectors == 4 ? 2 : CHAINS, vectors>(ratio, by_bin + k, K, N, above);
            for (size_t i = k, v = 0; v < vectors; ++v, i += L) {
                const Vec<T> h = at(point + i), below = at(p.constants + i) + at(slope + i);
                change += h * magnitude(above[v] - below);
                linear += h * at(p.constants + i);
                at(next + i) = smaller(larger(h * raise(above[v] / below), all(p.activation_floor)),
                                       all(p.activation_ceiling));
            }
        });
        const bool is_small = T(sum(change) / double(p.n_bins)) < p.tol;
        if (p.n_momentum == 0) {
            std::copy_n(next, K, here);
            std::copy_n(next, K, point);
            return is_small;
        }
        double fit[L] = {}, total = penalty + sum(linear);
        cost.flush(nullptr);
        cost.finish(fit, N);
        for (size_t i = 0; i < L; ++i) total += fit[i];
        return extrapolate(total) && is_small;
    }

    static double sum(Vec<T> x) {
        double total = 0;
        for (size_t i = 0; i < L; ++i) total += double(x[i]);
        return total;
    }

    Vec<T> raise(Vec<T> ratio) const {
        if (p.exponent == 1) return ratio;
        if (p.exponent == T(0.5)) return root<T>(ratio);
        return power<T>(ratio, all(p.exponent));
    }

    // Whether the cost has not risen; see Tile.
    bool extrapolate(double cost) {
        const bool up = cost > lowest + double(p.tolerated_rise) * double(p.n_bins);
        lowest = std::min(lowest, cost);
        age = up || age + 1 == p.n_momentum ? 0 : age + 1;
        if (up) {
            std::copy_n(here, K, point);
            return false;
        }
        const Vec<T> weight = all(p.momentum[age]);
        for (size_t k = 0; k < K; k += L) {
            const Vec<T> from = at(here + k), to = at(next + k);
            const Vec<T> ahead = to * quick_exp2<T>(weight * quick_log2<T>(to / from));
            at(point + k) = smaller(larger(ahead, all(p.activation_floor)),
                                    all(p.activation_ceiling));
            at(here + k) = to;
        }
        return true;
    }

    // The penalty at `point`, and its slopes.
    double penalise() {
        std::fill_n(groups, p.n_groups, T(0));
        for (size_t k = 0; k < p.n_components; ++k) groups[p.groups[k]] += point[k];
        const T n_bins = T(p.n_bins);
        double value = 0;
        for (size_t g = 0; g < p.n_groups; ++g) {
            const T share = groups[g] / n_bins;
            if (p.penalty == Penalty::l1) {
                value += double(share);
                groups[g] = p.strength / n_bins;
            } else {
                value += std::log(double(p.offset + share));
                groups[g] = p.strength / (p.offset + share) / n_bins;
            }
        }
        for (size_t k = 0; k < p.n_components; ++k) slope[k] = groups[p.groups[k]];
        return double(p.strength) * value;
    }

    // v / y of the answer, and Σ v log v / y.
    void keep_ratios(size_t row) {
        Divergence<T, Loss::kullback_leibler> divergence;
        divide(here, [&](size_t i) { divergence.add(at(target + i), at(ratio + i)); });
        std::copy_n(ratio, n, frames.ratios + frames.starts[row]);
        double each[L] = {}, total = 0;
        divergence.finish(each, N);
        for (size_t i = 0; i < L; ++i) total += each[i];
        frames.logs[row] = total;
    }
};

// Adds Σ h · v / y of the bins from `first` to `last` to `totals`, (n_components, n_bins), frame by
// frame. The indices of each frame's bins rise.
template <class T>
void add_sparse(const Problem<T>& p, const SparseFrames<T>& frames, size_t first, size_t last,
                double* workspace, double* totals) {
    constexpr size_t L = LANES<double>;
    const size_t K = (p.n_components + L - 1) / L * L;
    double *const h = workspace, *const sums = workspace + K;  // (K), and (last - first, K)
    std::fill_n(workspace, (last - first + 1) * K, 0.0);
    for (size_t row = 0; row < frames.n; ++row) {
        const std::int32_t *const begin = frames.bins + frames.starts[row],
                           *const end = frames.bins + frames.starts[row + 1];
        const std::int32_t* bin = std::lower_bound(begin, end, std::int32_t(first));
        if (bin == end || size_t(*bin) >= last) continue;
        const double weight = frames.weights ? double(frames.weights[row]) : 1.0;
        for (size_t k = 0; k < p.n_components; ++k)
            h[k] = weight * double(frames.activations[row * p.n_components + k]);
        for (; bin < end && size_t(*bin) < last; ++bin) {
            const Vec<double> ratio = all(double(frames.ratios[bin - frames.bins]));
            double* const sum = sums + (*bin - first) * K;
            for (size_t k = 0; k < K; k += L) at(sum + k) += ratio * at(h + k);
        }
    }
    for (size_t k = 0; k < p.n_components; ++k)
        for (size_t bin = first; bin < last; ++bin)
            totals[k * p.n_bins + bin] += sums[(bin - first) * K + k];
}

}  // namespace ondes::ONDES_ISA
