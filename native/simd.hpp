// Vectors at the width of the instruction set this file is compiled for, and the few functions of
// them that the kernel needs. Everything lives in a namespace named after the instruction set:
// several builds of this file are linked into one module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace ondes::ONDES_ISA {

using std::size_t;

// A vector type wider than the registers is spilled piece by piece: many times slower.
#if defined(__AVX512F__)
constexpr size_t VECTOR_BYTES = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr size_t VECTOR_BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr size_t VECTOR_BYTES = 16, REGISTERS = 32;
#else
constexpr size_t VECTOR_BYTES = 16, REGISTERS = 16;
#endif

constexpr double LOG_TWO = 0.69314718055994531;

template <class T> struct Bits;
template <> struct Bits<float> {
    using Int = std::int32_t;
    static constexpr int MANTISSA = 23, BIAS = 127, LOG_TERMS = 5, EXP_TERMS = 8;
};
template <> struct Bits<double> {
    using Int = std::int64_t;
    static constexpr int MANTISSA = 52, BIAS = 1023, LOG_TERMS = 11, EXP_TERMS = 14;
};

template <class T> constexpr size_t LANES = VECTOR_BYTES / sizeof(T);

template <class T> struct VectorOf {
    typedef T type __attribute__((vector_size(VECTOR_BYTES), may_alias));
};
template <class T> using Vec = typename VectorOf<T>::type;
template <class T> using IntVec = typename VectorOf<typename Bits<T>::Int>::type;

template <class T> inline Vec<T>& at(T* p) { return *reinterpret_cast<Vec<T>*>(p); }
template <class T> inline const Vec<T>& at(const T* p) {
    return *reinterpret_cast<const Vec<T>*>(p);
}
// A vector anywhere, on no boundary of vectors.
template <class T> inline Vec<T> loose(const T* p) {
    typedef T Loose __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(T))));
    return *reinterpret_cast<const Loose*>(p);
}
template <class T> inline Vec<T> all(T x) { return x - Vec<T>{}; }

template <class V> inline V larger(V a, V b) { return a > b ? a : b; }
template <class V> inline V smaller(V a, V b) { return a < b ? a : b; }
template <class V> inline V magnitude(V a) { return a < 0 ? -a : a; }

template <class T> inline Vec<T> root(Vec<T> x) {
    for (size_t i = 0; i < LANES<T>; ++i)
        x[i] = sizeof(T) == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
    return x;
}

// Σ log x over many positive x, as the product of their mantissas and the sum of their exponents.
template <class T> struct LogSum {
    using Int = typename Bits<T>::Int;
    static constexpr int MANTISSA = Bits<T>::MANTISSA;
    static constexpr Int ONE = Int(Bits<T>::BIAS) << MANTISSA;
    static constexpr Int MANTISSA_MASK = (Int(1) << MANTISSA) - 1;

    Vec<T> mantissas = all(T(1));
    IntVec<T> exponents = {};  // biased, one bias a factor

    void add(Vec<T> x) {
        const IntVec<T> bits = reinterpret_cast<IntVec<T>>(x);
        exponents += bits >> MANTISSA;
        mantissas *= reinterpret_cast<Vec<T>>((bits & MANTISSA_MASK) | ONE);
    }

    // To be called before the mantissas, each below two, can overflow.
    void normalise() {
        const Vec<T> product = mantissas;
        mantissas = all(T(1));
        add(product);
        exponents -= Bits<T>::BIAS;
    }
};

// x = 2^exponent · (1 + rest), rest from √½ − 1 to √2 − 1.
template <class T> struct Split {
    Vec<T> exponent, rest;

    explicit Split(Vec<T> x) {
        using Int = typename Bits<T>::Int;
        constexpr int MANTISSA = Bits<T>::MANTISSA;
        const Int sqrt_half = sizeof(T) == 4 ? Int(0x3f3504f3) : Int(0x3fe6a09e667f3bcd);
        const IntVec<T> bits = reinterpret_cast<IntVec<T>>(x);
        const IntVec<T> power = (bits - sqrt_half) >> MANTISSA;
        exponent = __builtin_convertvector(power, Vec<T>);
        rest = reinterpret_cast<Vec<T>>(bits - (power << MANTISSA)) - 1;
    }
};

// log x = exponent · log 2 + 2 artanh(rest / (rest + 2)).
template <class T, int TERMS = Bits<T>::LOG_TERMS> inline Vec<T> log2(Vec<T> x) {
    const Split<T> split(x);
    const Vec<T> s = split.rest / (split.rest + 2);
    const Vec<T> square = s * s;
    Vec<T> series = all(T(1) / (2 * TERMS + 1));
    for (int n = TERMS - 1; n >= 0; --n) series = series * square + T(1) / (2 * n + 1);
    const T two_over_log2 = T(2.8853900817779268);
    return split.exponent + two_over_log2 * s * series;
}

// Σ factors[i] · x^(N − 1 − i).
template <class T, size_t N> inline Vec<T> polynomial(Vec<T> x, const T (&factors)[N]) {
    Vec<T> sum = all(factors[0]);
    for (size_t i = 1; i < N; ++i) sum = sum * x + factors[i];
    return sum;
}

// log2 to 5e-8, without a division: enough of float32, while float64 takes the one above.
template <class T> inline Vec<T> quick_log2(Vec<T> x) {
    if constexpr (sizeof(T) == 8) return log2<T>(x);
    const Split<T> split(x);
    constexpr T series[] = {-0.14574298f, 0.23688979f, -0.25006929f, 0.28670755f,
                            -0.36008719f, 0.48093945f, -0.72135717f, 1.4426948f};
    return split.exponent + split.rest * polynomial<T>(split.rest, series);
}

// Σ weight · log2 x, each log2 to 1e-10.
template <class T> struct RoughLogSum {
    Vec<T> total = {};

    void add(Vec<T> weight, Vec<T> x) { total += weight * log2<T, 5>(x); }
    Vec<T> sum() const { return total; }
};

// The same to 2e-6. The bits of a float, as an integer, are 2^23 times its log2 but for a bend
// between powers of two: a polynomial of degree six, by Knuth's rule with three products instead of
// six, since only those wait for the units that the kernel keeps busy.
template <> struct RoughLogSum<float> {
    Vec<float> straight = {}, bent = {};

    void add(Vec<float> weight, Vec<float> x) {
        const std::int32_t one = LogSum<float>::ONE;
        const IntVec<float> bits = reinterpret_cast<IntVec<float>>(x);
        const auto m = reinterpret_cast<Vec<float>>((bits & LogSum<float>::MANTISSA_MASK) | one);
        const Vec<float> z = (m - 2.3890805f) * m + 3.3583523f;
        const Vec<float> w = (m - 3.46586518f) * z + 10.8354593f;
        straight += weight * __builtin_convertvector(bits - one, Vec<float>);
        bent += weight * ((w + (z - 19.0149061f)) * w + 66.169881f);
    }
    Vec<float> sum() const { return straight * 0x1p-23f - bent * 0.0256910888f; }
};

// 2^x = 2^n · exp((x − n) log 2), n the nearest integer.
template <class T> inline Vec<T> exp2(Vec<T> x) {
    const T bound = Bits<T>::BIAS - 1;
    x = x < -bound ? all(-bound) : (x > bound ? all(bound) : x);
    const Vec<T> half = x < 0 ? all(T(-0.5)) : all(T(0.5));
    const IntVec<T> n = __builtin_convertvector(x + half, IntVec<T>);
    const Vec<T> y = (x - __builtin_convertvector(n, Vec<T>)) * T(LOG_TWO);
    Vec<T> series = all(T(1));
    for (int i = Bits<T>::EXP_TERMS; i >= 1; --i) series = series * (y * (T(1) / i)) + 1;
    const IntVec<T> scale = (n + Bits<T>::BIAS) << Bits<T>::MANTISSA;
    return series * reinterpret_cast<Vec<T>>(scale);
}

// 2^x to 1e-7; float64 takes the one above.
template <class T> inline Vec<T> quick_exp2(Vec<T> x) {
    if constexpr (sizeof(T) == 8) return exp2<T>(x);
    const T bound = Bits<T>::BIAS - 1;
    x = smaller(larger(x, all(-bound)), all(bound));
    const T shift = T(0x1.8p23);  // rounds, and leaves an integer in the lowest bits
    const Vec<T> shifted = x + shift;
    constexpr T series[] = {1.34073e-3f, 9.67188e-3f, 5.550308e-2f, 0.24022235f, 0.69314721f, 1.f};
    const Vec<T> value = polynomial<T>(x - (shifted - shift), series);
    const IntVec<T> power = reinterpret_cast<IntVec<T>>(shifted) << Bits<T>::MANTISSA;
    return reinterpret_cast<Vec<T>>(reinterpret_cast<IntVec<T>>(value) + power);
}

template <class T> inline Vec<T> power(Vec<T> x, Vec<T> exponent) {
    return exp2<T>(exponent * log2<T>(x));
}

}  // namespace ondes::ONDES_ISA
