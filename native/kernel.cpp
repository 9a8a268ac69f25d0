// Compiled once for each instruction set, with ONDES_ISA its name.
#include "pair_sums.hpp"
#include "recurrence.hpp"
#include "sparse.hpp"
#include "statistics.hpp"
#include "tile.hpp"

namespace ondes::ONDES_ISA {

constexpr Weights NONE = Weights::none, FRAMES = Weights::frames, ENTRIES = Weights::entries;

template <class T, Loss LOSS, Weights WEIGHTS>
void encode(const Problem<T>& problem, const Frames<T>& frames, size_t first, size_t last,
            bool is_narrow, T* workspace) {
    constexpr bool WEIGHTED = WEIGHTS == ENTRIES;
    if (is_narrow) Tile<T, LOSS, 1, WEIGHTED>(problem, frames, workspace).solve(first, last);
    else Tile<T, LOSS, VECTORS, WEIGHTED>(problem, frames, workspace).solve(first, last);
}

template <class T, Loss LOSS, Weights WEIGHTS>
void add_panels(const Problem<T>& problem, const Frames<T>& frames, const Chunks<T>& chunks,
                size_t first, size_t last, T* workspace, const Totals& totals) {
    Summation<T, LOSS, WEIGHTS>(problem, frames, workspace).add_panels(chunks, first, last, totals);
}

template <class T, Loss LOSS, Weights WEIGHTS>
void add_rest(const Problem<T>& problem, const Frames<T>& frames, const Chunks<T>& chunks,
              T* workspace, const Totals& totals) {
    Summation<T, LOSS, WEIGHTS>(problem, frames, workspace).add_rest(chunks, totals);
}

template <class T, Loss LOSS, Weights WEIGHTS> size_t workspace_size(const Problem<T>& problem) {
    const size_t solve = Tile<T, LOSS, VECTORS, WEIGHTS == ENTRIES>::workspace_size(problem);
    const size_t sum = Summation<T, LOSS, WEIGHTS>::workspace_size(problem);
    return solve > sum ? solve : sum;
}

template <class T, Loss LOSS, Weights WEIGHTS> constexpr Kernel<T> kernel() {
    return {LOSS,
            WEIGHTS,
            LANES<T>,
            VECTORS * LANES<T>,
            workspace_size<T, LOSS, WEIGHTS>,
            // Weights of frames change no frame.
            encode<T, LOSS, WEIGHTS == ENTRIES ? ENTRIES : NONE>,
            Summation<T, LOSS, WEIGHTS>::n_panels,
            add_panels<T, LOSS, WEIGHTS>,
            add_rest<T, LOSS, WEIGHTS>};
}

constexpr Loss IS = Loss::itakura_saito, KL = Loss::kullback_leibler;

template <class T>
void encode_sparse(const Problem<T>& problem, const SparseFrames<T>& frames, size_t first,
                   size_t last, T* workspace) {
    SparseSolver<T>(problem, frames, workspace).solve(first, last);
}

template <class T>
constexpr SparseKernel<T> SPARSE = {SparseSolver<T>::padded, SparseSolver<T>::workspace_size,
                                    encode_sparse<T>, add_sparse<T>};

void sum_pairs(const PairSums& pairs, float* workspace) { PairSummation(pairs, workspace).run(); }
void recur(const Recurrence& given, float* workspace) { RecurrenceSolver(given, workspace).run(); }

#define ONDES_WEIGHTS(T, LOSS) \
    { kernel<T, LOSS, NONE>(), kernel<T, LOSS, FRAMES>(), kernel<T, LOSS, ENTRIES>() }

extern const Kernels kernels = {{ONDES_WEIGHTS(float, IS), ONDES_WEIGHTS(float, KL)},
                                {ONDES_WEIGHTS(double, IS), ONDES_WEIGHTS(double, KL)},
                                SPARSE<float>,
                                SPARSE<double>,
                                PairSummation::workspace_size,
                                sum_pairs,
                                RecurrenceSolver::workspace_size,
                                recur};

}  // namespace ondes::ONDES_ISA
