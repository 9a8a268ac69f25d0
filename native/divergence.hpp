// Sums of the divergence over many bins, in each lane: what the cost of a step is made of.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace ondes::ONDES_ISA {

// `add` bins; `flush` to float64 before digits are lost; `finish` once, after `n` bins in all.
template <class T, Loss LOSS> struct Divergence;

// Σ ratio − 1 − log ratio.
template <class T> struct Divergence<T, Loss::itakura_saito> {
    Vec<T> excess = {};
    LogSum<T> logs;

    void add(Vec<T>, Vec<T>, Vec<T> ratio) {
        excess += ratio - 1;
        logs.add(ratio);
    }

    void flush(double* sums) {
        for (size_t i = 0; i < LANES<T>; ++i) sums[i] += excess[i];
        excess = Vec<T>{};
        logs.normalise();
    }

    void finish(double* sums, size_t n) {
        const Vec<T> mantissa = log2<T>(logs.mantissas);
        for (size_t i = 0; i < LANES<T>; ++i) {
            const double exponent = double(logs.exponents[i]) - double(Bits<T>::BIAS * n);
            sums[i] += double(excess[i]) - LOG_TWO * (exponent + double(mantissa[i]));
        }
    }
};

// Σ v log ratio − v + y.
template <class T> struct Divergence<T, Loss::kullback_leibler> {
    Vec<T> excess = {};

    void add(Vec<T> value, Vec<T> model, Vec<T> ratio) {
        excess += value * (quick_log2<T>(ratio) * T(LOG_TWO)) + (model - value);
    }

    void flush(double* sums) {
        finish(sums, 0);
        excess = Vec<T>{};
    }

    void finish(double* sums, size_t) {
        for (size_t i = 0; i < LANES<T>; ++i) sums[i] += double(excess[i]);
    }
};

}  // namespace ondes::ONDES_ISA
