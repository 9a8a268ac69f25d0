// Rows of numbers become columns.
#pragma once

#include <utility>

#include "simd.hpp"

namespace ondes::ONDES_ISA {

#if defined(__clang__) || __GNUC__ >= 12
#define ONDES_SHUFFLES

// Two rows of a square whose blocks of S numbers beside its diagonal change places.
template <class T, size_t S, size_t... I>
inline void exchange(Vec<T>& a, Vec<T>& b, std::index_sequence<I...>) {
    constexpr size_t L = LANES<T>;
    const Vec<T> upper = __builtin_shufflevector(a, b, (I & S ? L + I - S : I)...);
    b = __builtin_shufflevector(a, b, (I & S ? L + I : I + S)...);
    a = upper;
}

template <class T, size_t S = 1> inline void transpose(Vec<T> (&square)[LANES<T>]) {
    constexpr auto lanes = std::make_index_sequence<LANES<T>>{};
    for (size_t i = 0; i < LANES<T>; ++i)
        if (!(i & S)) exchange<T, S>(square[i], square[i + S], lanes);
    if constexpr (2 * S < LANES<T>) transpose<T, 2 * S>(square);
}

#endif

// to[j][i] = from[i][j] + offset for as many rows of n numbers as a vector has lanes.
template <class T>
inline void transpose(const T* from, size_t n, T offset, T* to, size_t to_stride) {
    constexpr size_t L = LANES<T>;
    size_t j = 0;
#ifdef ONDES_SHUFFLES
    for (; j + L <= n; j += L) {
        Vec<T> square[L];
        for (size_t i = 0; i < L; ++i) square[i] = loose(from + i * n + j) + offset;
        transpose<T>(square);
        for (size_t i = 0; i < L; ++i) at(to + (j + i) * to_stride) = square[i];
    }
#endif
    for (; j < n; ++j)
        for (size_t i = 0; i < L; ++i) to[j * to_stride + i] = from[i * n + j] + offset;
}

}  // namespace ondes::ONDES_ISA
