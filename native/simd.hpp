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

// log x = exponent · log 2 + 2 artanh((m − 1) / (m + 1)), m in [√½, √2).
template <class T> inline Vec<T> log2(Vec<T> x) {
    using Int = typename Bits<T>::Int;
    constexpr int MANTISSA = Bits<T>::MANTISSA;
    const Int sqrt_half = sizeof(T) == 4 ? Int(0x3f3504f3) : Int(0x3fe6a09e667f3bcd);
    const IntVec<T> offset = reinterpret_cast<IntVec<T>>(x) - sqrt_half;
    const IntVec<T> exponent = offset >> MANTISSA;
    const IntVec<T> mantissa = reinterpret_cast<IntVec<T>>(x) - (exponent << MANTISSA);
    const Vec<T> m = reinterpret_cast<Vec<T>>(mantissa);
    const Vec<T> s = (m - 1) / (m + 1);
    const Vec<T> square = s * s;
    Vec<T> series = all(T(1) / (2 * Bits<T>::LOG_TERMS + 1));
    for (int n = Bits<T>::LOG_TERMS - 1; n >= 0; --n) series = series * square + T(1) / (2 * n + 1);
    const T two_over_log2 = T(2.8853900817779268);
    return __builtin_convertvector(exponent, Vec<T>) + two_over_log2 * s * series;
}

// The same to 5e-8, without a division: enough of float32, while float64 takes the one above.
template <class T> inline Vec<T> quick_log2(Vec<T> x) {
    if constexpr (sizeof(T) == 8) return log2<T>(x);
    constexpr T series[] = {-0.14574298f, 0.23688979f, -0.25006929f, 0.28670755f,
                            -0.36008719f, 0.48093945f, -0.72135717f, 1.4426948f};
    const IntVec<T> offset = reinterpret_cast<IntVec<T>>(x) - 0x3f3504f3;
    const IntVec<T> exponent = offset >> Bits<T>::MANTISSA;
    const IntVec<T> mantissa = reinterpret_cast<IntVec<T>>(x) - (exponent << Bits<T>::MANTISSA);
    const Vec<T> t = reinterpret_cast<Vec<T>>(mantissa) - 1;
    Vec<T> sum = all(series[0]);
    for (int i = 1; i < 8; ++i) sum = sum * t + series[i];
    return __builtin_convertvector(exponent, Vec<T>) + t * sum;
}

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

template <class T> inline Vec<T> power(Vec<T> x, Vec<T> exponent) {
    return exp2<T>(exponent * log2<T>(x));
}

}  // namespace ondes::ONDES_ISA
