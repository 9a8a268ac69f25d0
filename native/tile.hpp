// The inner solve of `ondes.nmf.backends.reference`, fused.
//
// W is the dictionary, h the activations of a frame, y = hW + background + ε its model; the
// divergence is Itakura-Saito's (IS) or Kullback-Leibler's (KL). A tile is as many frames as fill
// WIDTH vectors: a register block, or one vector where there are more threads than such blocks.
// While solving, frames lie in the SIMD lanes: a lane's arithmetic never sees its neighbours, so a
// frame's answer cannot depend on the tile it is in.
#pragma once

#include <algorithm>

#include "divergence.hpp"
#include "few.hpp"
#include "penalty.hpp"
#include "problem.hpp"
#include "product.hpp"
#include "transpose.hpp"

namespace ondes::ONDES_ISA {

template <class T, Loss LOSS, size_t WIDTH, bool WEIGHTED = false> class Tile {
  public:
    static constexpr size_t L = LANES<T>;
    static constexpr size_t N = WIDTH * L;  // frames
    // Bins whose 1/y and v/y² wait in cache. Each block reads and writes all activations, so it is
    // long; the cost is flushed after each, and its mantissas would overflow after 128 bins.
    template <bool WITH_COST> static constexpr size_t BLOCK = WITH_COST ? 96 : 260;
    static constexpr size_t DEPTH = 128;  // components whose activations wait in cache
    static constexpr bool IS = LOSS == Loss::itakura_saito;
    // Whether what is below in a step depends on the model, and not on components alone.
    static constexpr bool BELOW = IS || WEIGHTED;
    using Cost = std::conditional_t<WEIGHTED, WeightedCost<T, LOSS>, StepCost<T, LOSS>>;

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
        n_vectors = (std::min(end - next, N) + L - 1) / L;
        take_first();
        while (n_alive > 0) {
            with_vectors<WIDTH>(n_vectors, [&](auto vectors) {
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

  private:
    static constexpr size_t NOBODY = ~size_t(0);

    const Problem<T>& p;
    const Frames<T>& frames;
    size_t n_workspace;

    // Arrays with a column for each lane: (…, N).
    T* target;       // (n_bins, N): v + ε
    T* point;        // (n_rows, N): where the next step starts from
    T* here;         // (n_components, N): where the last good step led
    T* numerator;    // (n_components, N), then the step itself
    T* denominator;  // (n_components, N): its part that depends on the model; not for plain KL
    T* inverse;      // (BLOCK<false>, N): y, then 1 / y or the weight; not for plain KL
    T* weighted;     // (BLOCK<false>, N): v / y²; for KL y, then v / y
    T* mass;         // (n_bins, N): what each entry counts, where they have weights
    T* even;         // (row_stride) and more: see `begin_known`
    T* slopes;       // (n_groups, N): what the penalty adds to the denominator

    alignas(VECTOR_BYTES) T residual[N], penalty[N], weight[N];
    alignas(VECTOR_BYTES) typename Bits<T>::Int risen[N];
    alignas(VECTOR_BYTES) T total[N];  // Σ of a frame's weights
    double fit[N], lowest[N];
    const T* known;  // the weights that `even` is for
    size_t age[N], n_steps[N], frame[N];
    size_t n_alive, n_vectors, next, end;

    void lay_out(T* workspace) {
        n_workspace = 0;
        const auto take = [&](size_t n_rows) {
            T* const taken = workspace ? workspace + n_workspace : nullptr;
            n_workspace += n_rows * N;
            return taken;
        };
        target = take(p.n_bins);
        point = take(p.n_rows);
        here = take(p.n_components);
        numerator = take(p.n_components);
        denominator = take(BELOW ? p.n_components : 0);
        inverse = take(BELOW ? BLOCK<false> : 0);
        weighted = take(BLOCK<false>);
        slopes = take(p.n_groups);
        mass = take(WEIGHTED ? p.n_bins : 0);
        even = take(WEIGHTED ? (2 * p.row_stride + p.n_components + N - 1) / N : 0);
        known = nullptr;
    }

    // ---- Which frame is in which lane ----

    // Frames for all lanes; whole vectors of them are turned at once.
    void take_first() {
        size_t lane = 0;
        if (WEIGHTED)
            for (; lane < n_vectors * L; ++lane) take_next(lane);
        for (; lane < n_vectors * L && end - next >= L; lane += L) {
            transpose(frames.values + next * p.n_bins, p.n_bins, p.floor, target + lane, N);
            Vec<T> even = {};
            const size_t n = p.n_components;
            if (frames.start) transpose(frames.start + next * n, n, T(0), point + lane, N);
            else
                for (size_t i = 0; i < L; ++i) even[i] = even_activation(next + i);
            for (size_t k = 0; k < n; ++k) {
                const size_t i = k * N + lane;
                const Vec<T> value = frames.start ? at(point + i) : even;
                at(point + i) = at(here + i) = larger(value, all(p.activation_floor));
            }
            for (size_t i = 0; i < L; ++i) begin(lane + i);
        }
        for (; lane < n_vectors * L; ++lane) take_next(lane);
    }

    void take_next(size_t lane) {
        if (next == end) return idle(lane);
        const T* const values = frames.values + next * p.n_bins;
        for (size_t bin = 0; bin < p.n_bins; ++bin) target[bin * N + lane] = values[bin] + p.floor;
        const T* const start = frames.start ? frames.start + next * p.n_components : nullptr;
        if constexpr (WEIGHTED) {
            begin_known(lane, start);
        } else {
            const T even = start ? 0 : even_activation(next);
            for (size_t k = 0; k < p.n_components; ++k)
                point[k * N + lane] = here[k * N + lane] =
                    std::max(start ? start[k] : even, p.activation_floor);
        }
        begin(lane);
    }

    // The weights of a frame, and where its activations start: with components that are equal where
    // entries count, since the others are as if absent. Many frames have the same weights: what
    // follows from these alone is kept.
    void begin_known(size_t lane, const T* start) {
        const T* const weights = frames.weights + next * p.n_bins;
        T *const model = even, *const below = even + p.row_stride, *const first =
                                                                       below + p.row_stride;
        if (!known || !std::equal(weights, weights + p.n_bins, known)) {
            known = weights;
            weigh_model(weights, model, below, first);
        }
        double sum = 0, above = 0, under = 0;
        const T* const values = frames.values + next * p.n_bins;
        for (size_t bin = 0; bin < p.n_bins; ++bin) {
            mass[bin * N + lane] = weights[bin];
            sum += double(weights[bin]);
            above += double((values[bin] + p.floor) * below[bin]);
            under += double(IS ? weights[bin] : model[bin] * weights[bin]);
        }
        total[lane] = T(sum);
        const T gain = T(above / under);
        for (size_t k = 0; k < p.n_components; ++k)
            point[k * N + lane] = here[k * N + lane] =
                std::max(start ? start[k] : gain * first[k], p.activation_floor);
    }

    // The first activations of all components, the model that they make, and what each bin of a
    // frame counts for the gain: its weight times y^(β−1).
    void weigh_model(const T* weights, T* model, T* below, T* first) {
        double sum = 0;
        for (size_t bin = 0; bin < p.n_bins; ++bin) sum += double(weights[bin]);
        const T mean = T(sum / double(p.n_bins)), each = T(double(p.n_bins) / p.n_components);
        std::fill_n(model, p.row_stride, p.floor);
        for (size_t k = 0; k < p.n_components; ++k) {
            const T* const row = p.rows + k * p.row_stride;
            T sums[L] = {};
            size_t bin = 0;
            for (; bin + L <= p.n_bins; bin += L)
                for (size_t i = 0; i < L; ++i) sums[i] += row[bin + i] * weights[bin + i];
            for (; bin < p.n_bins; ++bin) sums[0] += row[bin] * weights[bin];
            T share = 0;
            for (size_t i = 0; i < L; ++i) share += sums[i];
            first[k] = each / std::max(share / mean, LEAST_SHARE);
            for (bin = 0; bin < p.row_stride; bin += L) at(model + bin) += first[k] * at(row + bin);
        }
        for (size_t bin = 0; bin < p.n_bins; ++bin)
            below[bin] = IS ? weights[bin] / model[bin] : weights[bin];
    }

    static constexpr T LEAST_SHARE = T(1e-6);  // of a component's mean row
    static constexpr T LEAST_BELOW = T(1e-37);

    void begin(size_t lane) {
        age[lane] = n_steps[lane] = 0;
        risen[lane] = 0;
        lowest[lane] = std::numeric_limits<double>::infinity();
        frame[lane] = next++;
        ++n_alive;
        if (frames.background) point[p.n_components * N + lane] = frames.background[frame[lane]];
    }

    // A lane without a frame is computed all the same: let it be harmless.
    void idle(size_t lane) {
        frame[lane] = NOBODY;
        age[lane] = 0;
        lowest[lane] = std::numeric_limits<double>::infinity();
        for (size_t bin = 0; bin < p.n_bins; ++bin) target[bin * N + lane] = 1;
        if constexpr (WEIGHTED) {
            for (size_t bin = 0; bin < p.n_bins; ++bin) mass[bin * N + lane] = 1;
            total[lane] = T(p.n_bins);
        }
        for (size_t k = 0; k < p.n_rows; ++k) point[k * N + lane] = 1;
        for (size_t k = 0; k < p.n_components; ++k) here[k * N + lane] = 1;
    }

    // Equal activations at the gain that minimises the divergence.
    T even_activation(size_t frame) const {
        const T* const values = frames.values + frame * p.n_bins;
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
            frame[lane] = NOBODY;
            if (next < end) take_next(lane);
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
        if constexpr (WEIGHTED) {
            for (size_t bin = 0; bin < p.n_bins; ++bin) mass[bin * N + to] = mass[bin * N + from];
            total[to] = total[from];
        }
        lowest[to] = lowest[from];
        age[to] = age[from];
        n_steps[to] = n_steps[from];
        frame[to] = frame[from];
        frame[from] = NOBODY;
    }

    // ---- One step of every lane: Algorithm 1 line 5 ----

    template <size_t V, bool WITH_COST> void step() {
        penalise_point<V, WITH_COST>();
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v) {
                at(numerator + k * N + v * L) = Vec<T>{};
                if constexpr (BELOW) at(denominator + k * N + v * L) = Vec<T>{};
            }
        if constexpr (WITH_COST) std::fill_n(fit, V * L, 0.0);

        Cost cost[V];
        const bool is_few = IS && !WEIGHTED && p.n_components <= FEW<WITH_COST>;
        const size_t block = is_few && !WITH_COST ? p.n_bins : block_length(BLOCK<WITH_COST>);
        for (size_t bin = 0; bin < p.n_bins; bin += block) {
            const size_t n = p.n_bins - bin < block ? p.n_bins - bin : block;
            if (is_few) {
                add_few_components<V, WITH_COST>(bin, n, cost);
            } else {
                compute_model<V>(bin, n);
                if constexpr (WEIGHTED) add_weighted_block<V, WITH_COST>(bin, n, cost);
                else add_block<V, WITH_COST>(bin, n, cost);
            }
            if constexpr (WITH_COST)
                for (size_t v = 0; v < V; ++v) cost[v].flush(fit + v * L);
        }
        if constexpr (WITH_COST)
            for (size_t v = 0; v < V; ++v) cost[v].finish(fit + v * L, p.n_bins);
        multiply<V>();
    }

    // Even blocks: 257 bins in blocks of 64 would leave one bin alone.
    size_t block_length(size_t most) const {
        const size_t n_blocks = (p.n_bins + most - 1) / most;
        const size_t length = (p.n_bins + n_blocks - 1) / n_blocks;
        return (length + ROWS - 1) / ROWS * ROWS;
    }

    template <size_t V, bool WITH_COST>
    void add_few_components(size_t bin, size_t n, Cost* cost) {
        if constexpr (IS && !WEIGHTED)
            with_components<FEW<WITH_COST>>(p.n_components, [&](auto k) {
                for (size_t v = 0; v < V; ++v)
                    add_few<k, WITH_COST, N>(p.columns + bin * p.n_rows, p.n_rows, p.floor,
                                             target + bin * N + v * L, n, point + v * L,
                                             numerator + v * L, denominator + v * L, cost[v]);
            });
    }

    T* models() const { return BELOW ? inverse : weighted; }

    // y of a block of bins; some of it is divided at once.
    template <size_t V> [[gnu::flatten]] void compute_model(size_t bin, size_t n) {
        T* const y = models();
        const T* const values = target + bin * N;
        for (size_t k = 0; k < p.n_rows; k += DEPTH) {
            const T* const columns = p.columns + bin * p.n_rows + k;
            const size_t depth = p.n_rows - k < DEPTH ? p.n_rows - k : DEPTH;
            const bool is_last = k + depth == p.n_rows;
            by_rows<ROWS_OF<V>>(n, [&](size_t row, auto rows) {
                product<rows, V>(
                    columns + row * p.n_rows, p.n_rows, point + k * N, N, depth,
                    [&](size_t r, size_t v) {
                        return k > 0 ? at(y + (row + r) * N + v * L) : all(p.floor);
                    },
                    [&](size_t r, size_t v, Vec<T> sum) {
                        const size_t i = (row + r) * N + v * L;
                        if (!WEIGHTED && v < DIRECT && is_last)
                            weigh<LOSS>(at(values + i), sum, inverse + i, weighted + i);
                        else
                            at(y + i) = sum;
                    },
                    nothing);
            });
        }
    }

    // What a block of bins adds to numerator, denominator and cost. The divisions that are left run
    // beside the first product, and the cost of each vector beside one of the next, where there are
    // registers for it.
    template <size_t V, bool WITH_COST>
    [[gnu::flatten]] void add_block(size_t bin, size_t n, Cost* cost) {
        const T* const values = target + bin * N;
        const auto divide = [&](size_t j) {
            for (size_t v = DIRECT; v < V; ++v) {
                const size_t i = j * N + v * L;
                weigh<LOSS>(at(values + i), at(models() + i), inverse + i, weighted + i);
            }
        };
        const auto add_cost = [&](size_t j, size_t v, Cost& sum) {
            const size_t i = j * N + v * L;
            sum.add(at(values + i), at((IS ? inverse : weighted) + i));
        };
        const auto add_rows = [&](const T* x, T* sums, size_t row, auto rows, auto beside) {
            add_product<rows, V>(p.rows + row * p.row_stride + bin, p.row_stride, x, N, n,
                                 sums + row * N, N, beside);
        };
        size_t vector = 0;
        const auto add = [&](const T* x, T* sums, size_t first) {
            by_rows<ROWS_OF<V>>(p.n_components - first, [&](size_t row, auto rows) {
                if (WITH_COST && REGISTERS == 32 && vector < V) {
                    const size_t v = vector++;
                    Cost sum = cost[v];  // a copy stays in registers
                    add_rows(x, sums, first + row, rows, [&](size_t j) { add_cost(j, v, sum); });
                    cost[v] = sum;
                } else {
                    add_rows(x, sums, first + row, rows, nothing);
                }
            });
        };
        for (size_t j = 0; j < AHEAD && j < n; ++j) divide(j);
        const auto divide_ahead = [&](size_t j) {
            if (j + AHEAD < n) divide(j + AHEAD);
        };
        const size_t first = first_rows<V>(p.n_components);
        by_rows<ROWS_OF<V>>(first, [&](size_t, auto rows) {
            add_rows(weighted, numerator, 0, rows, divide_ahead);
        });
        add(weighted, numerator, first);
        if constexpr (IS) add(inverse, denominator, 0);
        if constexpr (WITH_COST)
            for (; vector < V; ++vector) {
                Cost sum = cost[vector];
                for (size_t j = 0; j < n; ++j) add_cost(j, vector, sum);
                cost[vector] = sum;
            }
    }

    // The same where entries have weights: for each its own division, and its cost where it is.
    template <size_t V, bool WITH_COST>
    [[gnu::flatten]] void add_weighted_block(size_t bin, size_t n, Cost* cost) {
        const T *const values = target + bin * N, *const masses = mass + bin * N;
        for (size_t j = 0; j < n; ++j)
            for (size_t v = 0; v < V; ++v) {
                const size_t i = j * N + v * L;
                const Vec<T> model = at(inverse + i), m = at(masses + i), value = at(values + i);
                if constexpr (WITH_COST) cost[v].add(value, model, m);
                weigh<LOSS>(value, model, inverse + i, weighted + i);
                at(weighted + i) *= m;
                at(inverse + i) = IS ? at(inverse + i) * m : m;
            }
        const auto add = [&](const T* x, T* sums) {
            by_rows<ROWS_OF<V>>(p.n_components, [&](size_t row, auto rows) {
                add_product<rows, V>(p.rows + row * p.row_stride + bin, p.row_stride, x, N, n,
                                     sums + row * N, N, nothing);
            });
        };
        add(weighted, numerator);
        add(inverse, denominator);
    }

    // h · (numerator / denominator)^θ takes the numerator's place.
    template <size_t V> void multiply() {
        for (size_t v = 0; v < V; ++v) {
            Vec<T> sum = {};
            for (size_t k = 0; k < p.n_components; ++k) {
                const size_t i = k * N + v * L;
                Vec<T> below;
                if constexpr (WEIGHTED) {
                    below = larger(at(denominator + i), all(LEAST_BELOW));
                    if (p.sparsity) below += p.sparsity[k];
                } else {
                    below = all(p.constants[k]);
                    if constexpr (IS) below += at(denominator + i);
                }
                if (p.penalty != Penalty::none) below += at(slopes + p.groups[k] * N + v * L);
                const Vec<T> above = at(numerator + i), h = at(point + i);
                sum += h * magnitude(above - below);
                const Vec<T> step = larger(h * raise(above / below), all(p.activation_floor));
                at(numerator + i) = smaller(step, all(p.activation_ceiling));
            }
            if constexpr (WEIGHTED) at(residual + v * L) = sum / at(total + v * L);
            else at(residual + v * L) = sum / T(p.n_bins);
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
        double tolerated = double(p.tolerated_rise) * double(p.n_bins);
        for (size_t lane = 0; lane < V * L; ++lane) {
            if constexpr (WEIGHTED) tolerated = double(p.tolerated_rise) * double(total[lane]);
            double cost = fit[lane];
            cost += double(penalty[lane]);
            const bool up = cost > lowest[lane] + tolerated;
            if (cost < lowest[lane]) lowest[lane] = cost;
            age[lane] = up || age[lane] + 1 == p.n_momentum ? 0 : age[lane] + 1;
            weight[lane] = p.momentum[age[lane]];
            risen[lane] = up;
        }
        for (size_t k = 0; k < p.n_components; ++k) {
            Vec<T> push[V];  // in two rounds: whole chains one after the other would take long
            for (size_t v = 0; v < V; ++v) {
                const size_t i = k * N + v * L;
                push[v] = at(weight + v * L) * quick_log2<T>(at(numerator + i) / at(here + i));
            }
            for (size_t v = 0; v < V; ++v) {
                const size_t i = k * N + v * L;
                const Vec<T> from = at(here + i), to = at(numerator + i);
                const Vec<T> ahead = larger(to * quick_exp2<T>(push[v]), all(p.activation_floor));
                const auto up = at(risen + v * L) != 0;
                at(point + i) = up ? from : smaller(ahead, all(p.activation_ceiling));
                at(here + i) = up ? from : to;
            }
        }
    }

    // The penalty at `point` and its slopes, and what else of the cost is no sum over bins.
    template <size_t V, bool WITH_COST> void penalise_point() {
        for (size_t v = 0; v < V; ++v) at(penalty + v * L) = Vec<T>{};
        if (p.penalty != Penalty::none) penalise<V, N>(p, point, slopes, penalty);
        const T* const slope = BELOW ? p.sparsity : p.constants;
        if (!WITH_COST || slope == nullptr) return;
        for (size_t k = 0; k < p.n_components; ++k)
            for (size_t v = 0; v < V; ++v)
                at(penalty + v * L) += slope[k] * at(point + k * N + v * L);
    }
};

}  // namespace ondes::ONDES_ISA
