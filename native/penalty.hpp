// Penalties on the activations of every lane.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace ondes::ONDES_ISA {

// Adds the penalty's value at `point` to `value`, and leaves its slope for each group in `slopes`.
// All have a column for each of N lanes, of which V vectors are in use.
template <size_t V, size_t N, class T>
inline void penalise(const Problem<T>& p, const T* point, T* slopes, T* value) {
    constexpr size_t L = LANES<T>;
    const T n_bins = T(p.n_bins);
    for (size_t g = 0; g < p.n_groups; ++g)
        for (size_t v = 0; v < V; ++v) at(slopes + g * N + v * L) = Vec<T>{};
    for (size_t k = 0; k < p.n_components; ++k)
        for (size_t v = 0; v < V; ++v)
            at(slopes + p.groups[k] * N + v * L) += at(point + k * N + v * L);
    for (size_t v = 0; v < V; ++v) {
        Vec<T> sum = {};
        for (size_t g = 0; g < p.n_groups; ++g) {
            Vec<T>& slope = at(slopes + g * N + v * L);
            const Vec<T> share = slope / n_bins;
            if (p.penalty == Penalty::l1) {
                sum += share;
                slope = all(p.strength / n_bins);
            } else {
                sum += log2<T>(p.offset + share) * T(LOG_TWO);
                slope = p.strength / (p.offset + share) / n_bins;
            }
        }
        at(value + v * L) = p.strength * sum;
    }
}

}  // namespace ondes::ONDES_ISA
