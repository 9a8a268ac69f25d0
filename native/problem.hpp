// What the kernel is given: plain values and pointers, the same for every instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace ondes {

enum class Penalty { none, l1, group_log };
enum class Loss { itakura_saito, kullback_leibler };  // β = 0 and 1
enum class Weights { none, frames, entries };          // entries: and frames where there are any

template <class T> struct Problem {
    std::size_t n_components, n_bins;
    std::size_t n_rows;        // the components, and the background where there is one
    std::size_t row_stride;    // n_bins, rounded up to whole vectors
    const T* rows;             // (n_rows, row_stride), zeros behind the last bin
    const T* columns;          // (n_bins, n_rows)
    const T* even_weights;     // (n_bins): Σ of these · v / n_components is the fresh activation
    const T* constants;        // (n_components): the part of the denominator that never changes
    const T* sparsity;         // (n_components): λ ‖w‖₂, or null
    T floor, activation_floor, activation_ceiling, tolerated_rise;

    std::size_t max_steps;
    T exponent;
    const T* momentum;
    std::size_t n_momentum;
    T tol;

    Penalty penalty;
    T strength, offset;
    const std::int32_t* groups;  // (n_components)
    std::size_t n_groups;
};

template <class T> struct Frames {
    const T* values;       // (n, n_bins)
    const T* background;   // (n): the activation of the background, or null
    const T* start;        // (n, n_components), or null
    T* activations;        // (n, n_components)
    const T* weights;        // (n, n_bins): what each entry counts, or null
    const T* frame_weights;  // (n): what each frame counts in sums, or null
};

// Sums over a batch, to be added to.
struct Totals {
    double* weighted;          // (n_components, n_bins): Σ h · v / y², or v / y for KL
    double* inverse;           // the same of h / y; for KL (n_components): Σ h, equal in all bins
                               // unless entries have weights, then Σ h · weight
    double* penalty_gradient;  // (n_components): Σ h · slope of the penalty
    double* divergence;        // (1)
};

// How the statistics are summed: in T over the frames of a chunk, in float64 over chunks. The bins
// are cut into panels, which share no sum.
template <class T> struct Chunks {
    std::size_t n_frames, length, n_panels;
    T *weighted, *inverse;  // (n_components, row_stride): of one chunk
    double* rest;           // (2, n_components): of one chunk
    double* divergences;    // (n_tiles, n_panels, lanes)
};

// The functions of one instruction set and divergence, for frames with such weights.
template <class T> struct Kernel {
    Loss loss;
    Weights weights;
    std::size_t lanes, tile;
    std::size_t (*workspace_size)(const Problem<T>&);  // in T, for each function
    // Solves the frames from `first` to `last`, `tile` or `lanes` of them at a time.
    void (*encode)(const Problem<T>&, const Frames<T>&, std::size_t first, std::size_t last,
                   bool is_narrow, T* workspace);
    // Adds the panels from `first` to `last`, of n_panels.
    std::size_t (*n_panels)(const Problem<T>&);
    void (*add_panels)(const Problem<T>&, const Frames<T>&, const Chunks<T>&, std::size_t first,
                       std::size_t last, T* workspace, const Totals&);
    // Adds what is no sum for each bin.
    void (*add_rest)(const Problem<T>&, const Frames<T>&, const Chunks<T>&, T* workspace,
                     const Totals&);
};

// Frames by their nonzero bins, whose indices rise.
template <class T> struct SparseFrames {
    std::size_t n, most;         // frames, and the most nonzero bins of one
    const std::int64_t* starts;  // (n + 1): the first of each frame's
    const std::int32_t* bins;    // (n_nonzero)
    const T* values;             // (n_nonzero)
    const T* spectrum;           // (n_bins): the background, or null
    const T *background, *start, *weights;  // (n): its activation; see Frames; in sums; or null
    T* activations;              // (n, n_components)
    T* ratios;                   // (n_nonzero): v / y, or null
    double* logs;                // (n): Σ v log v / y

    // Finds the longest, and refuses what would be read outside of the arrays.
    void check(std::size_t n_nonzero, std::size_t n_bins) {
        if (starts[0] != 0 || std::size_t(starts[n]) != n_nonzero)
            throw std::invalid_argument("starts must begin with 0 and end with the number of bins");
        for (std::size_t i = 0; i < n; ++i) {
            if (starts[i] > starts[i + 1] || std::size_t(starts[i + 1]) > n_nonzero)
                throw std::invalid_argument("starts must not fall");
            most = std::max(most, std::size_t(starts[i + 1] - starts[i]));
            for (std::int64_t j = starts[i]; j < starts[i + 1]; ++j)
                if (bins[j] < 0 || std::size_t(bins[j]) >= n_bins ||
                    (j > starts[i] && bins[j] <= bins[j - 1]))
                    throw std::invalid_argument("the bins of a frame must rise, below n_bins");
        }
    }
};

// For sparse frames `columns` are (n_bins, padded(n_components)), `constants` as many, ones in the
// padding, and the even weights one for all bins.
template <class T> struct SparseKernel {
    std::size_t (*padded)(std::size_t);
    std::size_t (*workspace_size)(const Problem<T>&, const SparseFrames<T>&);
    void (*encode)(const Problem<T>&, const SparseFrames<T>&, std::size_t first, std::size_t last,
                   T* workspace);
    void (*add)(const Problem<T>&, const SparseFrames<T>&, std::size_t first, std::size_t last,
                double* workspace, double* totals);
};

// Pairs of frames, and the shapes of the signals whose energy they share; see pair_sums.hpp.
struct PairSums {
    std::size_t n_rows, n_channels, n_bins, n_signals, n_distances;
    const float *earlier, *later;    // (n_rows, n_channels, n_bins), complex
    const float *turn, *turn_later;  // (n_bins), complex
    const float* shapes;             // (n_distances, n_bins, n_signals)
    float* sums;                     // (n_rows, n_signals)
};

// A gated recurrence over frames or bands; see recurrence.hpp.
struct Recurrence {
    std::size_t n_frames, n_bands, n_states;  // an even number of states
    bool along_bands;
    const float* gates;  // (n_frames, n_bands, 3, n_states): of z, c and g
    const float* bias;   // (3, n_states)
    float* out;          // (n_frames, n_bands, n_states)
};

struct Kernels {
    Kernel<float> single[2][3];  // by Loss and Weights
    Kernel<double> twice[2][3];
    SparseKernel<float> sparse_single;
    SparseKernel<double> sparse_twice;
    std::size_t (*pair_workspace_size)(const PairSums&);
    void (*sum_pairs)(const PairSums&, float* workspace);
    std::size_t (*recurrence_workspace_size)(const Recurrence&);
    void (*recur)(const Recurrence&, float* workspace);
};

}  // namespace ondes
