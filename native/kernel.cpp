// Compiled once for each instruction set, with ONDES_ISA its name.
#include "is_kernel.hpp"

namespace ondes::ONDES_ISA {

template <class T>
void encode(const Problem<T>& problem, const Frames<T>& frames, size_t first, size_t last,
            T* workspace) {
    Tile<T>(problem, frames, workspace).solve(first, last);
}

template <class T>
void summarise(const Problem<T>& problem, const Frames<T>& frames, size_t first, size_t last,
               T* workspace, ChunkSums<T>& sums) {
    Tile<T> tile(problem, frames, workspace);
    tile.solve(first, last);
    tile.accumulate(first, last, sums);
}

template <class T> constexpr Kernel<T> kernel() {
    return {LANES<T>, Tile<T>::N, Tile<T>::workspace_size, encode<T>, summarise<T>};
}

extern const Kernels kernels = {kernel<float>(), kernel<double>()};

}  // namespace ondes::ONDES_ISA
