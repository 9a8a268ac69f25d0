// The register-blocked product under everything: c[r][v] += Σ_j a[r][j] · x[j][v].
#pragma once

#include <type_traits>

#include "simd.hpp"

namespace ondes::ONDES_ISA {

constexpr size_t ROWS = 4;                           // of a register block
constexpr size_t VECTORS = REGISTERS == 32 ? 4 : 3;  // of a register block, and of a wide tile

// Of a block of V vectors: a sum takes four cycles, so that eight are under way at once.
template <size_t V> constexpr size_t ROWS_OF = V == 1 ? 2 * ROWS : ROWS;

// Divisions run beside sums: of a block's vectors some are divided as soon as they are summed, the
// others beside the next product, so many rows ahead of it.
constexpr size_t DIRECT = VECTORS / 2, AHEAD = 2;

template <size_t N> using Count = std::integral_constant<size_t, N>;

// body(first row, number of rows) over `n` rows, in blocks of MOST and then fewer.
template <size_t MOST, class Body> inline void by_rows(size_t n, Body body) {
    static_assert(ROWS == 4 && (MOST == ROWS || MOST == 2 * ROWS));
    size_t row = 0;
    for (; row + MOST <= n; row += MOST) body(row, Count<MOST>{});
    if (row + ROWS <= n) {
        body(row, Count<ROWS>{});
        row += ROWS;
    }
    if (n - row == 3) body(row, Count<3>{});
    if (n - row == 2) body(row, Count<2>{});
    if (n - row == 1) body(row, Count<1>{});
}

// How many of `n` rows the first of these blocks has.
template <size_t V> inline size_t first_rows(size_t n) {
    return n >= ROWS_OF<V> ? ROWS_OF<V> : n < ROWS ? n : ROWS;
}

// body(number of vectors), as a number that the compiler knows, from 1 to MOST.
template <size_t MOST, class Body> inline void with_vectors(size_t n, Body body) {
    if constexpr (MOST > 1)
        if (n < MOST) return with_vectors<MOST - 1>(n, body);
    body(Count<MOST>{});
}

constexpr auto nothing = [](size_t) {};

// finish(r, v, begin(r, v) + Σ_j a[r][j] · x[j][v]), summed in the order of j whatever R and V.
// beside(j) comes before term j: slow work, like divisions, that the sums hide if it is spread.
template <size_t R, size_t V, class T, class Begin, class Finish, class Beside>
inline void product(const T* a, size_t a_stride, const T* x, size_t x_stride, size_t depth,
                    Begin begin, Finish finish, Beside beside) {
    Vec<T> sum[R][V];
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < V; ++v) sum[r][v] = begin(r, v);
    for (size_t j = 0; j < depth; ++j, x += x_stride) {
        beside(j);
        for (size_t r = 0; r < R; ++r) {
            const Vec<T> weight = all(a[r * a_stride + j]);
            for (size_t v = 0; v < V; ++v) sum[r][v] += weight * at(x + v * LANES<T>);
        }
    }
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < V; ++v) finish(r, v, sum[r][v]);
}

// c[r][v] += Σ_j a[r][j] · x[j][v] over R rows.
template <size_t R, size_t V, class T, class Beside>
inline void add_product(const T* a, size_t a_stride, const T* x, size_t x_stride, size_t depth,
                        T* c, size_t c_stride, Beside beside) {
    product<R, V>(
        a, a_stride, x, x_stride, depth,
        [&](size_t r, size_t v) { return at(c + r * c_stride + v * LANES<T>); },
        [&](size_t r, size_t v, Vec<T> sum) { at(c + r * c_stride + v * LANES<T>) = sum; }, beside);
}

}  // namespace ondes::ONDES_ISA
