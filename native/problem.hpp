// What the kernel is given: plain values and pointers, the same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ondes {

enum class Penalty { none, l1, group_log };
enum class Loss { itakura_saito, kullback_leibler };  // β = 0 and 1

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
};

// Sums over the frames of one chunk.
template <class T> struct ChunkSums {
    T* weighted;               // (n_components, row_stride): Σ h · v / y², or v / y for KL
    T* inverse;                // (n_components, row_stride): Σ h / y; of IS alone
    double* penalty_gradient;  // (n_components): Σ h · slope of the penalty
    double* activations;       // (n_components): Σ h; of KL alone
    double divergence;
};

// Sums over a batch, to be added to: (n_components, n_bins) twice, (n_components) and (1).
struct Totals {
    double *weighted, *inverse, *penalty_gradient, *divergence;
};

// The functions of one instruction set and divergence. A chunk is the frames from `first` to `last`.
template <class T> struct Kernel {
    Loss loss;
    std::size_t lanes, tile;
    std::size_t (*workspace_size)(const Problem<T>&);  // in T, for either function
    void (*encode)(const Problem<T>&, const Frames<T>&, std::size_t first, std::size_t last,
                   T* workspace);
    void (*summarise)(const Problem<T>&, const Frames<T>&, std::size_t first, std::size_t last,
                      T* workspace, ChunkSums<T>&);
    void (*add)(const Problem<T>&, const ChunkSums<T>&, const Totals&);
};

// Pairs of frames, and the shapes of the signals whose energy they share; see pair_sums.hpp.
struct PairSums {
    std::size_t n_rows, n_channels, n_bins, n_signals, n_distances;
    const float *earlier, *later;    // (n_rows, n_channels, n_bins), complex
    const float *turn, *turn_later;  // (n_bins), complex
    const float* shapes;             // (n_distances, n_bins, n_signals)
    float* sums;                     // (n_rows, n_signals)
};

struct Kernels {
    Kernel<float> single[2];  // by Loss
    Kernel<double> twice[2];
    std::size_t (*pair_workspace_size)(const PairSums&);
    void (*sum_pairs)(const PairSums&, float* workspace);
};

}  // namespace ondes
