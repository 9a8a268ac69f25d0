// What a bin weighs in a step, and sums of the divergence over many bins, in each lane.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace ondes::ONDES_ISA {

// Keeps 1 / y and v / y², or v / y for KL.
template <Loss LOSS, class T>
inline void weigh(Vec<T> value, Vec<T> model, T* inverse, T* weighted) {
    if constexpr (LOSS == Loss::itakura_saito) {
        const Vec<T> y = 1 / model;
        at(inverse) = y;
        at(weighted) = value * y * y;
    } else {
        at(weighted) = value / model;
    }
}

// Sums over bins: `add` v and what `weigh` keeps of a bin, 1 / y, or v / y for KL; `flush` to
// float64 before digits are lost; `finish` once, after `n` bins in all.

template <class T, Loss LOSS> struct Divergence;

// Σ ratio − 1 − log ratio.
template <class T> struct Divergence<T, Loss::itakura_saito> {
    Vec<T> excess = {};
    LogSum<T> logs;

    void add(Vec<T> value, Vec<T> inverse) {
        const Vec<T> ratio = value * inverse;
        excess += ratio - 1;
        logs.add(ratio);
    }

    void finish(double* sums, size_t n) {
        const Vec<T> mantissa = log2<T>(logs.mantissas);
        for (size_t i = 0; i < LANES<T>; ++i) {
            const double exponent = double(logs.exponents[i]) - double(Bits<T>::BIAS * n);
            sums[i] += double(excess[i]) - LOG_TWO * (exponent + double(mantissa[i]));
        }
    }
};

// Σ v log ratio; Σ y − v is left to the caller.
template <class T> struct Divergence<T, Loss::kullback_leibler> {
    Vec<T> logs = {};

    void add(Vec<T> value, Vec<T> ratio) { logs += value * quick_log2<T>(ratio); }

    void finish(double* sums, size_t) {
        for (size_t i = 0; i < LANES<T>; ++i) sums[i] += LOG_TWO * double(logs[i]);
    }
};

// What a step asks of the divergence: how it differs from that of another step. What never changes
// in a frame is left out.
template <class T, Loss LOSS> struct StepCost;

// Σ v / y + log y.
template <class T> struct StepCost<T, Loss::itakura_saito> {
    Vec<T> ratios = {};
    LogSum<T> logs;

    void add(Vec<T> value, Vec<T> inverse) {
        ratios += value * inverse;
        logs.add(inverse);
    }

    void flush(double* sums) {
        for (size_t i = 0; i < LANES<T>; ++i) sums[i] += ratios[i];
        ratios = Vec<T>{};
        logs.normalise();
    }

    void finish(double* sums, size_t n) {
        const Vec<T> mantissa = log2<T>(logs.mantissas);
        for (size_t i = 0; i < LANES<T>; ++i) {
            const double exponent = double(logs.exponents[i]) - double(Bits<T>::BIAS * n);
            sums[i] -= LOG_TWO * (exponent + double(mantissa[i]));
        }
    }
};

// Σ v log ratio, so roughly that only a rise of the cost by 1e-4 of a bin can be seen: all that a
// step asks for. It knows Σ y from the activations.
template <class T> struct StepCost<T, Loss::kullback_leibler> {
    RoughLogSum<T> logs;           // of a few bins
    Vec<T> total = {}, lost = {};  // of those before, and what rounding took from it

    void add(Vec<T> value, Vec<T> ratio) { logs.add(value, ratio); }

    void flush(double*) {
        const Vec<T> more = logs.sum(), sum = total + more, taken = sum - total;
        lost += (total - (sum - taken)) + (more - taken);
        total = sum;
        logs = {};
    }

    void finish(double* sums, size_t) {
        for (size_t i = 0; i < LANES<T>; ++i)
            sums[i] += LOG_TWO * (double(total[i]) + double(lost[i]));
    }
};

// The cost of a step where each entry has its own weight m: Σ m (v / y + log y), or for KL
// Σ m (v log v / y + y).
template <class T, Loss LOSS> struct WeightedCost {
    Vec<T> sum = {};

    void add(Vec<T> value, Vec<T> model, Vec<T> m) {
        const T log_two = T(LOG_TWO);
        if constexpr (LOSS == Loss::itakura_saito)
            sum += m * (value / model + log_two * quick_log2<T>(model));
        else
            sum += m * (value * (log_two * quick_log2<T>(value / model)) + model);
    }

    void flush(double* sums) {
        for (size_t i = 0; i < LANES<T>; ++i) sums[i] += double(sum[i]);
        sum = Vec<T>{};
    }

    void finish(double*, size_t) {}
};

}  // namespace ondes::ONDES_ISA
