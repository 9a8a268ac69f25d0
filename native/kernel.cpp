// Compiled once for each instruction set, with ONDES_ISA its name.
#include "pair_sums.hpp"
#include "statistics.hpp"
#include "tile.hpp"

namespace ondes::ONDES_ISA {

template <class T, Loss LOSS>
void encode(const Problem<T>& problem, const Frames<T>& frames, size_t first, size_t last,
            T* workspace) {
    Tile<T, LOSS>(problem, frames, workspace).solve(first, last);
}

template <class T, Loss LOSS>
void summarise(const Problem<T>& problem, const Frames<T>& frames, size_t first, size_t last,
               T* workspace, ChunkSums<T>& sums) {
    Tile<T, LOSS>(problem, frames, workspace).solve(first, last);
    Summation<T, LOSS>(problem, frames, workspace).accumulate(first, last, sums);
}

template <class T, Loss LOSS> size_t workspace_size(const Problem<T>& problem) {
    const size_t solve = Tile<T, LOSS>::workspace_size(problem);
    const size_t sum = Summation<T, LOSS>::workspace_size(problem);
    return solve > sum ? solve : sum;
}

template <class T, Loss LOSS> constexpr Kernel<T> kernel() {
    return {LOSS, LANES<T>, Tile<T, LOSS>::N, workspace_size<T, LOSS>, encode<T, LOSS>,
            summarise<T, LOSS>, add_sums<T, LOSS>};
}

template <class T> constexpr Kernel<T> IS = kernel<T, Loss::itakura_saito>();
template <class T> constexpr Kernel<T> KL = kernel<T, Loss::kullback_leibler>();

void sum_pairs(const PairSums& pairs, float* workspace) { PairSummation(pairs, workspace).run(); }

extern const Kernels kernels = {{IS<float>, KL<float>},
                                {IS<double>, KL<double>},
                                PairSummation::workspace_size,
                                sum_pairs};

}  // namespace ondes::ONDES_ISA
