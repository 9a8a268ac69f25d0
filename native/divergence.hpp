// What a bin weighs in a step, and sums of the divergence over many bins, in each lane.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace ondes::ONDES_ISA {

// Keeps 1 / y and v / y², or v / y for KL, and returns v / y.
template <Loss LOSS, class T>
inline Vec<T> weigh(Vec<T> value, Vec<T> model, T* inverse, T* weighted) {
    if constexpr (LOSS == Loss::itakura_saito) {
        const Vec<T> y = 1 / model;
        const Vec<T> ratio = value * y;
        at(inverse) = y;
        at(weighted) = ratio * y;
        return ratio;
    } else {
        return at(weighted) = value / model;
    }
}

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

    void finish(double* sums, size_t) {
        for (size_t i = 0; i < LANES<T>; ++i) sums[i] += double(excess[i]);
    }
};

// Σ v log ratio, so roughly that only a rise of the cost by 1e-4 of a bin can be seen: all that a
// step asks for. It knows Σ y from the activations, and Σ v never changes.
template <class T> struct RoughDivergence {
    Vec<T> logs = {};              // of a few bins
    Vec<T> total = {}, lost = {};  // of those before, and what rounding took from it

    void add(Vec<T> value, Vec<T>, Vec<T> ratio) { logs += value * rough_log2<T>(ratio); }

    void flush(double*) {
        const Vec<T> sum = total + logs, taken = sum - total;
        lost += (total - (sum - taken)) + (logs - taken);
        total = sum;
        logs = Vec<T>{};
    }

    void finish(double* sums, size_t) {
        for (size_t i = 0; i < LANES<T>; ++i)
            sums[i] += LOG_TWO * (double(total[i]) + double(lost[i]));
    }
};

}  // namespace ondes::ONDES_ISA
