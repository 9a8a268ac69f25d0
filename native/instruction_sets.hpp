// The kernels that are linked in, and which of them this machine runs.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace ondes {

#if defined(__x86_64__)
namespace v2 { extern const Kernels kernels; }
namespace v3 { extern const Kernels kernels; }
namespace v4 { extern const Kernels kernels; }
#else
namespace baseline { extern const Kernels kernels; }
#endif

// The instruction sets that this machine runs, the best last.
inline std::vector<std::pair<std::string, const Kernels*>> instruction_sets() {
    std::vector<std::pair<std::string, const Kernels*>> sets;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const auto has_v3 = [] {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2");
    };
    const auto has_v4 = [] {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    };
    if (__builtin_cpu_supports("sse4.2")) sets.emplace_back("v2", &v2::kernels);
    if (has_v3()) sets.emplace_back("v3", &v3::kernels);
    if (has_v3() && has_v4()) sets.emplace_back("v4", &v4::kernels);
#else
    sets.emplace_back("baseline", &baseline::kernels);
#endif
    return sets;
}

inline const Kernels& find_kernels(const std::string& isa) {
    for (const auto& [name, kernels] : instruction_sets())
        if (name == isa) return *kernels;
    throw std::invalid_argument("this machine does not run instruction set " + isa);
}

template <class T>
const Kernel<T>& find_kernel(const std::string& isa, Loss loss, Weights weights = Weights::none) {
    const Kernels& kernels = find_kernels(isa);
    if constexpr (sizeof(T) == 4) return kernels.single[int(loss)][int(weights)];
    else return kernels.twice[int(loss)][int(weights)];
}

template <class T> const SparseKernel<T>& find_sparse_kernel(const std::string& isa) {
    if constexpr (sizeof(T) == 4) return find_kernels(isa).sparse_single;
    else return find_kernels(isa).sparse_twice;
}

}  // namespace ondes
