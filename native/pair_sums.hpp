// Products of neighbouring bins of two frames, summed under the shapes of many signals: the inner
// loop of ondes.separation.overlap_energy, where the formula is.
#pragma once

#include "problem.hpp"
#include "product.hpp"

namespace ondes::ONDES_ISA {

// With p_q(f) = Re conj(a(f)) b(f − q), and the other way round for q > 0, summed over channels,
// sums[t][k] = Σ_q Σ_f p_q(f) · shapes[q][f][k]. A block of bins at a time stays in the caches.
class PairSummation {
  public:
    static size_t workspace_size(const PairSums& pairs) {
        return pairs.n_rows * (depth(pairs) + stride(pairs)) + VECTORS * LANE * depth(pairs) +
               4 * (BINS + pairs.n_distances);
    }

    PairSummation(const PairSums& pairs, float* workspace)
        : pairs_(pairs), depth_(depth(pairs)), stride_(stride(pairs)), sums_(workspace),
          shapes_(sums_ + pairs.n_rows * stride_), products_(shapes_ + VECTORS * LANE * depth_),
          parts_(products_ + pairs.n_rows * depth_) {}

    void run() {
        for (size_t i = 0; i < pairs_.n_rows * stride_; ++i) sums_[i] = 0;
        for (size_t first = 0; first < pairs_.n_bins; first += BINS) {
            const size_t n = pairs_.n_bins - first < BINS ? pairs_.n_bins - first : BINS;
            for (size_t row = 0; row < pairs_.n_rows; ++row) multiply(row, first, n);
            size_t vectors = 0;
            for (size_t signal = 0; signal < stride_; signal += vectors * LANE) {
                vectors = vectors_from(signal);
                with_vectors<VECTORS>(vectors, [&](auto count) {
                    constexpr size_t V = decltype(count)::value;
                    pack<V>(signal, first, n);
                    by_rows<ROWS_OF<V>>(pairs_.n_rows, [&](size_t row, auto rows) {
                        add_product<decltype(rows)::value, V>(
                            products_ + row * depth_, depth_, shapes_, V * LANE,
                            n * pairs_.n_distances, sums_ + row * stride_ + signal, stride_,
                            nothing);
                    });
                });
            }
        }
        for (size_t row = 0; row < pairs_.n_rows; ++row)
            for (size_t k = 0; k < pairs_.n_signals; ++k)
                pairs_.sums[row * pairs_.n_signals + k] = sums_[row * stride_ + k];
    }

  private:
    static constexpr size_t LANE = LANES<float>, BINS = 64;

    static size_t depth(const PairSums& pairs) { return BINS * pairs.n_distances; }
    static size_t stride(const PairSums& pairs) { return (pairs.n_signals + LANE - 1) / LANE * LANE; }
    // As even as possible: one vector alone would wait for its own sums.
    size_t vectors_from(size_t signal) const {
        const size_t left = (stride_ - signal) / LANE, n_blocks = (left + VECTORS - 1) / VECTORS;
        return (left + n_blocks - 1) / n_blocks;
    }

    // The shapes of V · LANE signals in n bins, one row per distance and bin, zeros behind the last.
    template <size_t V> void pack(size_t signal, size_t first, size_t n) {
        const size_t left = pairs_.n_signals - signal;
        const size_t width = left < V * LANE ? left : V * LANE;
        float* to = shapes_;
        for (size_t q = 0; q < pairs_.n_distances; ++q)
            for (size_t f = first; f < first + n; ++f, to += V * LANE) {
                const float* from = pairs_.shapes + (q * pairs_.n_bins + f) * pairs_.n_signals;
                for (size_t k = 0; k < width; ++k) to[k] = from[signal + k];
                for (size_t k = width; k < V * LANE; ++k) to[k] = 0;
            }
    }

    // p of one pair of frames in n bins, one distance after the other.
    void multiply(size_t row, size_t first, size_t n) {
        const size_t n_before = first < pairs_.n_distances ? first : pairs_.n_distances - 1;
        const size_t length = BINS + pairs_.n_distances, start = first - n_before;
        float* const products = products_ + row * depth_;
        for (size_t i = 0; i < n * pairs_.n_distances; ++i) products[i] = 0;
        for (size_t channel = 0; channel < pairs_.n_channels; ++channel) {
            const size_t bin = (row * pairs_.n_channels + channel) * pairs_.n_bins + start;
            turned(pairs_.earlier + 2 * bin, pairs_.turn + 2 * start, n + n_before, parts_,
                   parts_ + length);
            turned(pairs_.later + 2 * bin, pairs_.turn_later + 2 * start, n + n_before,
                   parts_ + 2 * length, parts_ + 3 * length);
            const float* const earlier = parts_ + n_before;
            const float* const later = earlier + 2 * length;
            add_products(earlier, earlier + length, later, later + length, first, n, products);
        }
    }

    void add_products(const float* __restrict earlier_re, const float* __restrict earlier_im,
                      const float* __restrict later_re, const float* __restrict later_im,
                      size_t first, size_t n, float* __restrict p) const {
        for (size_t f = 0; f < n; ++f)
            p[f] += earlier_re[f] * later_re[f] + earlier_im[f] * later_im[f];
        for (std::ptrdiff_t q = 1, size = n; q < std::ptrdiff_t(pairs_.n_distances); ++q) {
            p += n;
            std::ptrdiff_t f = 0;
            // Below the first bin are the conjugates of those above.
            for (; std::ptrdiff_t(first) + f < q; ++f)
                p[f] += earlier_re[f] * later_re[q - f] - earlier_im[f] * later_im[q - f];
            for (; f < size; ++f)
                p[f] += earlier_re[f] * later_re[f - q] + earlier_im[f] * later_im[f - q] +
                        earlier_re[f - q] * later_re[f] + earlier_im[f - q] * later_im[f];
        }
    }

    static void turned(const float* __restrict frame, const float* __restrict turn, size_t n,
                       float* __restrict re, float* __restrict im) {
        for (size_t i = 0; i < n; ++i) {
            re[i] = frame[2 * i] * turn[2 * i] - frame[2 * i + 1] * turn[2 * i + 1];
            im[i] = frame[2 * i] * turn[2 * i + 1] + frame[2 * i + 1] * turn[2 * i];
        }
    }

    const PairSums& pairs_;
    const size_t depth_, stride_;
    float *const sums_, *const shapes_, *const products_, *const parts_;
};

}  // namespace ondes::ONDES_ISA
