// A step of few components, in registers from the model to the sums: on AVX-512 stores cost as much
// as products, and `Tile` stores 1 / y and v / y² of each bin.
#pragma once

#include "divergence.hpp"
#include "product.hpp"

namespace ondes::ONDES_ISA {

// With more components, or with the cost beside, the registers run out and `Tile` is faster.
template <bool WITH_COST> constexpr size_t FEW = VECTOR_BYTES < 64 ? 0 : WITH_COST ? 7 : 10;

// body(n), as a number that the compiler knows, for n from 1 to MOST.
template <size_t MOST, class Body> inline void with_components(size_t n, Body body) {
    if constexpr (MOST > 0) {
        if (n == MOST) return body(Count<MOST>{});
        with_components<MOST - 1>(n, body);
    }
}

// What `n` bins add to the numerator, the denominator and the cost of one vector of frames. All
// have rows of N lanes; `weights` has `n_rows` numbers a bin, K of them or one more.
template <size_t K, bool WITH_COST, size_t N, class T>
void add_few(const T* weights, size_t n_rows, T floor, const T* target, size_t n, const T* point,
             T* numerator, T* denominator, StepCost<T, Loss::itakura_saito>& cost) {
    const bool has_background = n_rows > K;
    Vec<T> h[K], above[K], below[K];
    for (size_t k = 0; k < K; ++k) {
        h[k] = at(point + k * N);
        above[k] = at(numerator + k * N);
        below[k] = at(denominator + k * N);
    }
    auto sum = cost;  // a copy stays in registers

    // Each bin is begun two bins ahead: its sum over components, then its division, take as long.
    const auto model = [&](size_t bin) {
        const T* const w = weights + (bin < n ? bin : 0) * n_rows;
        Vec<T> y = all(floor);
        for (size_t k = 0; k < K; ++k) y += w[k] * h[k];
        return has_background ? y + w[K] * at(point + K * N) : y;
    };
    Vec<T> value = at(target), inverse = 1 / model(0), next = model(1);
    Vec<T> weighted = value * inverse * inverse;
    for (size_t bin = 0; bin < n; ++bin) {
        const Vec<T> after = model(bin + 2);
        // Unknown to be the same weights, each is an operand in memory: that costs no register.
        const T *const w = weights + bin * n_rows, *same = w;
        asm("" : "+r"(same));
        for (size_t k = 0; k < K; ++k) {
            below[k] += w[k] * inverse;
            above[k] += same[k] * weighted;
        }
        if constexpr (WITH_COST) sum.add(value, inverse);
        value = at(target + (bin + 1 < n ? bin + 1 : 0) * N);
        inverse = 1 / next;
        weighted = value * inverse * inverse;
        next = after;
    }

    cost = sum;
    for (size_t k = 0; k < K; ++k) {
        at(numerator + k * N) = above[k];
        at(denominator + k * N) = below[k];
    }
}

}  // namespace ondes::ONDES_ISA
