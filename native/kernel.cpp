// Compiled once for each instruction set, with ONDES_ISA its name.
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
    Tile<T, LOSS> tile(problem, frames, workspace);
    tile.solve(first, last);
    tile.accumulate(first, last, sums);
}

template <class T, Loss LOSS> constexpr Kernel<T> kernel() {
    using Here = Tile<T, LOSS>;
    return {LOSS, LANES<T>, Here::N, Here::workspace_size, encode<T, LOSS>, summarise<T, LOSS>};
}

template <class T> constexpr Kernel<T> IS = kernel<T, Loss::itakura_saito>();
template <class T> constexpr Kernel<T> KL = kernel<T, Loss::kullback_leibler>();

extern const Kernels kernels = {{IS<float>, KL<float>}, {IS<double>, KL<double>}};

}  // namespace ondes::ONDES_ISA
