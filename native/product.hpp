// The register-blocked product under everything: c[r][v] += Σ_j a[r][j] · x[j][v].
#pragma once

#include <type_traits>

#include "simd.hpp"

namespace ondes::ONDES_ISA {

constexpr size_t ROWS = 4;                           // of a register block
constexpr size_t VECTORS = REGISTERS == 32 ? 4 : 3;  // of a register block, and of a tile

template <size_t N> using Count = std::integral_constant<size_t, N>;

// body(first row, number of rows) over blocks of `n` rows.
template <class Body> inline void by_rows(size_t n, Body body) {
    static_assert(ROWS == 4);
    size_t row = 0;
    for (; row + ROWS <= n; row += ROWS) body(row, Count<ROWS>{});
    if (n - row == 3) body(row, Count<3>{});
    if (n - row == 2) body(row, Count<2>{});
    if (n - row == 1) body(row, Count<1>{});
}

// body(number of vectors), as a number that the compiler knows.
template <class Body> inline void with_vectors(size_t n, Body body) {
    static_assert(VECTORS == 3 || VECTORS == 4);
    if (n == 1) return body(Count<1>{});
    if (n == 2) return body(Count<2>{});
    if (n == 3) return body(Count<3>{});
    if constexpr (VECTORS == 4) return body(Count<4>{});
}

// finish(r, v, begin(r, v) + Σ_j a[r][j] · x[j][v]), summed in the order of j whatever R and V.
template <size_t R, size_t V, class T, class Begin, class Finish>
inline void product(const T* a, size_t a_stride, const T* x, size_t x_stride, size_t depth,
                    Begin begin, Finish finish) {
    Vec<T> sum[R][V];
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < V; ++v) sum[r][v] = begin(r, v);
    for (size_t j = 0; j < depth; ++j, x += x_stride)
        for (size_t r = 0; r < R; ++r) {
            const Vec<T> weight = all(a[r * a_stride + j]);
            for (size_t v = 0; v < V; ++v) sum[r][v] += weight * at(x + v * LANES<T>);
        }
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < V; ++v) finish(r, v, sum[r][v]);
}

// c[r][v] += Σ_j a[r][j] · x[j][v] over `n` rows.
template <size_t V, class T>
inline void add_product(size_t n, const T* a, size_t a_stride, const T* x, size_t x_stride,
                        size_t depth, T* c, size_t c_stride) {
    by_rows(n, [&](size_t row, auto rows) {
        T* const sums = c + row * c_stride;
        product<rows, V>(
            a + row * a_stride, a_stride, x, x_stride, depth,
            [&](size_t r, size_t v) { return at(sums + r * c_stride + v * LANES<T>); },
            [&](size_t r, size_t v, Vec<T> sum) { at(sums + r * c_stride + v * LANES<T>) = sum; });
    });
}

}  // namespace ondes::ONDES_ISA
