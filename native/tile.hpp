// The inner solve and the statistics of `ondes.nmf.backends.reference`, fused.
//
// W is the dictionary, h the activations of a frame, y = hW + background + ε its model; the
// divergence is Itakura-Saito's (IS) or Kullback-Leibler's (KL). A tile is as many frames as fill
// a register block. While solving, frames lie in the SIMD lanes: a lane's
// arithmetic never sees its neighbours, so a frame's answer cannot depend on the tile it is in.
// For the statistics, which are sums over frames, bins lie in the lanes.
#pragma once

#include "divergence.hpp"
#include "problem.hpp"
#include "product.hpp"

namespace ondes::ONDES_ISA {

template <class T, Loss LOSS> class Tile {
  public:
    static constexpr size_t L = LANES<T>;
    static constexpr size_t N = VECTORS * L;  // frames
    static constexpr size_t BLOCK = 48;       // bins whose 1/y and v/y² wait in cache
    static constexpr bool IS = LOSS == Loss::itakura_saito;

    Tile(const Problem<T>& problem, const Frames<T>& frames, T* workspace)
        : p(problem), frames(frames) {
        lay_out(workspace);
    }

    static size_t workspace_size(const Problem<T>& problem) {
        return Tile(problem, Frames<T>{}, nullptr).n_workspace;
    }

    void solve(size_t first, size_t last) {
        next = first;
        end = last;
        n_alive = 0;
        n_vectors = VECTORS;
        for (size_t lane = 0; lane < N; ++lane) take_next(lane);
        compact();
        while (n_alive > 0) {
            with_vectors(n_vectors, [&](auto vectors) {
                if (p.n_momentum > 0) {
                    step<vectors, true>();
                    extrapolate<vectors>();
                } else {
                    step<vectors, false>();
                    settle<vectors>();
                }
            });
            retire();
            compact();
        }
    }

    // Adds to `sums`, by the activations that `solve` has left in `frames`.
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
    static constexpr size_t NOBODY = ~size_t(0);

    const Problem<T>& p;
    const Frames<T>& frames;
    size_t n_workspace;

    // Arrays with a column for each lane: (…, N).
    T* target;       // (n_bins, N): v + ε. For the statistics (N, row_stride).
    T* point;        // (n_rows, N): where the next step starts from
    T* here;         // (n_components, N): where the last good step led
    T* numerator;    // (n_components, N), then the step itself
    T* denominator;  // (n_components, N): its part that depends on the model; IS alone has one
    T* inverse;      // (BLOCK, N): 1 / y; IS alone. For the statistics (N, N).
    T* weighted;     // (BLOCK, N): v / y², or v / y for KL. For the statistics (N, N).
    T* slopes;       // (n_groups, N): what the penalty adds to the denominator
    T* by_frame;     // (N, n_rows): activations, for the statistics

    alignas(VECTOR_BYTES) T residual[N], penalty[N], weight[N];
    alignas(VECTOR_BYTES) typename Bits<T>::Int risen[N];
    double fit[N], lowest[N];
    size_t age[N], n_steps[N], frame[N];
    size_t n_alive, n_vectors, next, end;

    void lay_out(T* workspace) {
        n_workspace = 0;
        const auto take = [&](size_t n_rows) {
            T* const taken = workspace ? workspace + n_workspace : nullptr;
            n_workspace += n_rows * N;
            return taken;
        };
        const size_t block = BLOCK > N ? BLOCK : N;
        target = take(p.row_stride);
        point = take(p.n_rows);
        here = take(p.n_components);
        numerator = take(p.n_components);
        denominator = take(IS ? p.n_components : 0);
        inverse = take(IS ? block : 0);
        weighted = take(block);
        slopes = take(p.n_groups);
        by_frame = take(p.n_rows);
    }

    // ---- Which frame is in which lane ----

    void take_next(size_t lane) {
        age[lane] = n_steps[lane] = 0;
        risen[lane] = 0;
        lowest[lane] = std::numeric_limits<double>::infinity();
        frame[lane] = next < end ? next++ : NOBODY;
        if (frame[lane] == NOBODY) return idle(lane);
        ++n_alive;
        const T* const values = frames.values + frame[lane] * p.n_bins;
        for (size_t bin = 0; bin < p.n_bins; ++bin) target[bin * N + lane] = values[bin] + p.floor;
        const T* const start = frames.start ? frames.start + frame[lane] * p.n_components : nullptr;
        const T even = start ? 0 : even_activation(values);
        for (size_t k = 0; k < p.n_components; ++k) {
            const T value = start ? start[k] : even;
            point[k * N + lane] = here[k * N + lane] =
                value > p.activation_floor ? value : p.activation_floor;
        }
        if (frames.background) point[p.n_components * N + lane] = frames.background[frame[lane]];
    }

    // A lane without a frame is computed all the same: let it be harmless.
    void idle(size_t lane) {
        for (size_t bin = 0; bin < p.n_bins; ++bin) target[bin * N + lane] = 1;
        for (size_t k = 0; k < p.n_rows; ++k) point[k * N + lane] = 1;
        for (size_t k = 0; k < p.n_components; ++k) here[k * N + lane] = 1;
    }

    // Equal activations at the gain that minimises the divergence.
    T even_activation(const T* values) const {
        T sums[L] = {};
        size_t bin = 0;
        for (; bin + L <= p.n_bins; bin += L)
            for (size_t i = 0; i < L; ++i)
                sums[i] += (values[bin + i] + p.floor) * p.even_weights[bin + i];
        for (; bin < p.n_bins; ++bin) sums[0] += (values[bin] + p.floor) * p.even_weights[bin];
        double total = 0;
        for (size_t i = 0; i < L; ++i) total += sums[i];
        return T(total / double(p.n_components));
    }

    // Write out the frames that are done, and let the next ones have their lanes.
    void retire() {
        for (size_t lane = 0; lane < n_vectors * L; ++lane) {
            if (frame[lane] == NOBODY) continue;
            const bool solved = !risen[lane] && residual[lane] < p.tol;
            if (++n_steps[lane] < p.max_steps && !solved) continue;
            T* const out = frames.activations + frame[lane] * p.n_components;
            for (size_t k = 0; k < p.n_components; ++k) out[k] = here[k * N + lane];
            --n_alive;
            if (next < end) take_next(lane);
            else frame[lane] = NOBODY;
        }
    }

    // Once a whole vector's worth of lanes is empty, gather the frames in fewer vectors.
    void compact() {
        const size_t needed = (n_alive + L - 1) / L;
        if (needed == n_vectors) return;
        size_t to = 0;
        for (size_t from = needed * L; from < n_vectors * L; ++from) {
            if (frame[from] == NOBODY) continue;
            while (frame[to] != NOBODY) ++to;
            move(from, to);
        }
        n_vectors = needed;
    }

    void move(size_t from, size_t to) {
        for (size_t bin = 0; bin < p.n_bins; ++bin) target[bin * N + to] = target[bin * N + from];
        for (size_t k = 0; k < p.n_rows; ++k) point[k * N + to] = point[k * N + from];
        for (size_t k = 0; k < p.n_components; ++k) here[k * N + to] = here[k * N + from];
        lowest[to] = lowest[from];
        age[to] = age[from];
        n_steps[to] = n_steps[from];
        frame[to] = frame[from];
        frame[from] = NOBODY;
    }

    // ---- One step of every lane: Algorithm 1 line 5 ----

    template <size_t V, bool WITH_COST> void step() {
        if (is_penalised()) penalise<V>();
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v) {
                at(numerator + k * N + v * L) = Vec<T>{};
                if constexpr (IS) at(denominator + k * N + v * L) = Vec<T>{};
            }
        for (size_t lane = 0; lane < V * L; ++lane) fit[lane] = 0;

        Divergence<T, LOSS> divergence[V];
        const size_t block = block_length();
        for (size_t bin = 0; bin < p.n_bins; bin += block) {
            const size_t n = p.n_bins - bin < block ? p.n_bins - bin : block;
            invert_model<V, WITH_COST>(bin, n, divergence);
            const T* const rows = p.rows + bin;
            add_product<V>(p.n_components, rows, p.row_stride, weighted, N, n, numerator, N);
            if constexpr (IS)
                add_product<V>(p.n_components, rows, p.row_stride, inverse, N, n, denominator, N);
            if constexpr (WITH_COST)
                for (size_t v = 0; v < V; ++v) divergence[v].flush(fit + v * L);
        }
        if constexpr (WITH_COST)
            for (size_t v = 0; v < V; ++v) divergence[v].finish(fit + v * L, p.n_bins);
        multiply<V>();
    }

    // Even blocks: 257 bins in blocks of 64 would leave one bin alone.
    size_t block_length() const {
        const size_t n_blocks = (p.n_bins + BLOCK - 1) / BLOCK;
        const size_t length = (p.n_bins + n_blocks - 1) / n_blocks;
        return (length + ROWS - 1) / ROWS * ROWS;
    }

    // 1 / y and v / y² of a block of bins, or v / y for KL.
    template <size_t V, bool WITH_COST>
    void invert_model(size_t bin, size_t n, Divergence<T, LOSS>* divergence) {
        by_rows(n, [&](size_t row, auto rows) {
            product<rows, V>(
                p.columns + (bin + row) * p.n_rows, p.n_rows, point, N, p.n_rows,
                [&](size_t, size_t) { return all(p.floor); },
                [&](size_t r, size_t v, Vec<T> model) {
                    const Vec<T> value = at(target + (bin + row + r) * N + v * L);
                    const Vec<T> ratio = weigh((row + r) * N + v * L, value, model);
                    if constexpr (WITH_COST) divergence[v].add(value, model, ratio);
                });
        });
    }

    // Keep what a bin weighs at `i`, and return v / y.
    Vec<T> weigh(size_t i, Vec<T> value, Vec<T> model) {
        if constexpr (IS) {
            const Vec<T> y = 1 / model;
            const Vec<T> ratio = value * y;
            at(inverse + i) = y;
            at(weighted + i) = ratio * y;
            return ratio;
        } else {
            return at(weighted + i) = value / model;
        }
    }

    // h · (numerator / denominator)^θ takes the numerator's place.
    template <size_t V> void multiply() {
        for (size_t v = 0; v < V; ++v) {
            Vec<T> sum = {};
            for (size_t k = 0; k < p.n_components; ++k) {
                const size_t i = k * N + v * L;
                Vec<T> below = all(p.constants[k]);
                if constexpr (IS) below += at(denominator + i);
                if (p.penalty != Penalty::none) below += at(slopes + p.groups[k] * N + v * L);
                const Vec<T> above = at(numerator + i), h = at(point + i);
                sum += h * magnitude(above - below);
                at(numerator + i) = larger(h * raise(above / below), all(p.activation_floor));
            }
            at(residual + v * L) = sum / T(p.n_bins);
        }
    }

    Vec<T> raise(Vec<T> ratio) const {
        if (p.exponent == 1) return ratio;
        if (p.exponent == T(0.5)) return root<T>(ratio);
        return power<T>(ratio, all(p.exponent));
    }

    template <size_t V> void settle() {
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v) {
                const size_t i = k * N + v * L;
                at(point + i) = at(here + i) = at(numerator + i);
            }
    }

    // Start the next step ahead of this one, or again from `here` where the cost has risen.
    template <size_t V> void extrapolate() {
        const double tolerated = double(p.tolerated_rise) * double(p.n_bins);
        for (size_t lane = 0; lane < V * L; ++lane) {
            double cost = fit[lane];
            if (is_penalised()) cost += double(penalty[lane]);
            const bool up = cost > lowest[lane] + tolerated;
            if (cost < lowest[lane]) lowest[lane] = cost;
            age[lane] = up ? 0 : (age[lane] + 1) % p.n_momentum;
            weight[lane] = p.momentum[age[lane]];
            risen[lane] = up;
        }
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v) {
                const size_t i = k * N + v * L;
                const Vec<T> from = at(here + i), to = at(numerator + i);
                const Vec<T> push = power<T>(to / from, at(weight + v * L));
                const Vec<T> ahead = larger(to * push, all(p.activation_floor));
                const auto up = at(risen + v * L) != 0;
                at(point + i) = up ? from : smaller(ahead, all(p.activation_ceiling));
                at(here + i) = up ? from : to;
            }
    }

    bool is_penalised() const { return p.penalty != Penalty::none || p.sparsity != nullptr; }

    // The value of penalty and sparsity at `point`, and the penalty's slope for each group.
    template <size_t V> void penalise() {
        for (size_t v = 0; v < V; ++v) at(penalty + v * L) = Vec<T>{};
        if (p.penalty != Penalty::none) penalise_groups<V>();
        if (p.sparsity == nullptr) return;
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v)
                at(penalty + v * L) += p.sparsity[k] * at(point + k * N + v * L);
    }

    template <size_t V> void penalise_groups() {
        const T n_bins = T(p.n_bins);
        for (size_t g = 0; g < p.n_groups; ++g)
            for (size_t v = 0; v < V; ++v) at(slopes + g * N + v * L) = Vec<T>{};
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v)
                at(slopes + p.groups[k] * N + v * L) += at(point + k * N + v * L);
        for (size_t v = 0; v < V; ++v) {
            Vec<T> value = {};
            for (size_t g = 0; g < p.n_groups; ++g) {
                Vec<T>& slope = at(slopes + g * N + v * L);
                const Vec<T> share = slope / n_bins;
                if (p.penalty == Penalty::l1) {
                    value += share;
                    slope = all(p.strength / n_bins);
                } else {
                    value += log2<T>(p.offset + share) * T(LOG_TWO);
                    slope = p.strength / (p.offset + share) / n_bins;
                }
            }
            at(penalty + v * L) = p.strength * value;
        }
    }

    // ---- The statistics: a and b of Algorithm 1 ----

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

    template <size_t V> void accumulate_panel(size_t bin, size_t n, ChunkSums<T>& sums) {
        Divergence<T, LOSS> divergence[V];
        by_rows(n, [&](size_t row, auto rows) {
            product<rows, V>(
                by_frame + row * p.n_rows, p.n_rows, p.rows + bin, p.row_stride, p.n_rows,
                [&](size_t, size_t) { return all(p.floor); },
                [&](size_t r, size_t v, Vec<T> model) {
                    const Vec<T> value = at(target + (row + r) * p.row_stride + bin + v * L);
                    const Vec<T> ratio = weigh((row + r) * N + v * L, value, model);
                    divergence[v].add(value, model, ratio);
                });
        });
        const size_t stride = p.row_stride;
        add_product<V>(p.n_components, point, N, weighted, N, n, sums.weighted + bin, stride);
        if constexpr (IS)
            add_product<V>(p.n_components, point, N, inverse, N, n, sums.inverse + bin, stride);
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
        penalise<VECTORS>();
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t i = 0; i < n; ++i)
                sums.penalty_gradient[k] += double(slopes[p.groups[k] * N + i] * point[k * N + i]);
    }
};

}  // namespace ondes::ONDES_ISA
