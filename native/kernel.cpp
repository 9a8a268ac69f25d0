// Compiled once for each instruction set, with ONDES_ISA its name.
#include "pair_sums.hpp"
#include "sparse.hpp"
#include "statistics.hpp"
#include "tile.hpp"

namespace ondes::ONDES_ISA {

template <class T, Loss LOSS>
void encode(const Problem<T>& problem, const Frames<T>& frames, size_t first, size_t last,
            bool is_narrow, T* workspace) {
    if (is_narrow) Tile<T, LOSS, 1>(problem, frames, workspace).solve(first, last);
    else Tile<T, LOSS, VECTORS>(problem, frames, workspace).solve(first, last);
}

template <class T, Loss LOSS>
void add_panels(const Problem<T>& problem, const Frames<T>& frames, const Chunks<T>& chunks,
                size_t first, size_t last, T* workspace, const Totals& totals) {
    Summation<T, LOSS>(problem, frames, workspace).add_panels(chunks, first, last, totals);
}

template <class T, Loss LOSS>
void add_rest(const Problem<T>& problem, const Frames<T>& frames, const Chunks<T>& chunks,
              T* workspace, const Totals& totals) {
    Summation<T, LOSS>(problem, frames, workspace).add_rest(chunks, totals);
}

template <class T, Loss LOSS> size_t workspace_size(const Problem<T>& problem) {
    const size_t solve = Tile<T, LOSS, VECTORS>::workspace_size(problem);
    const size_t sum = Summation<T, LOSS>::workspace_size(problem);
    return solve > sum ? solve : sum;
}

template <class T, Loss LOSS> constexpr Kernel<T> kernel() {
    return {LOSS,
            LANES<T>,
            VECTORS * LANES<T>,
            workspace_size<T, LOSS>,
            encode<T, LOSS>,
            Summation<T, LOSS>::n_panels,
            add_panels<T, LOSS>,
            add_rest<T, LOSS>};
}

template <class T> constexpr Kernel<T> IS = kernel<T, Loss::itakura_saito>();
template <class T> constexpr Kernel<T> KL = kernel<T, Loss::kullback_leibler>();

template <class T>
void encode_sparse(const Problem<T>& problem, const SparseFrames<T>& frames, size_t first,
                   size_t last, T* workspace) {
    SparseSolver<T>(problem, frames, workspace).solve(first, last);
}

template <class T>
constexpr SparseKernel<T> SPARSE = {SparseSolver<T>::padded, SparseSolver<T>::workspace_size,
                                    encode_sparse<T>, add_sparse<T>};

void sum_pairs(const PairSums& pairs, float* workspace) { PairSummation(pairs, workspace).run(); }

extern const Kernels kernels = {{IS<float>, KL<float>},
                                {IS<double>, KL<double>},
                                SPARSE<float>,
                                SPARSE<double>,
                                PairSummation::workspace_size,
                                sum_pairs};

}  // namespace ondes::ONDES_ISA
