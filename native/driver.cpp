// Solves one small fixed problem without Python, for callgrind and the thread sanitizer:
//   driver ISA float32|float64 plain|default|kullback-leibler N_THREADS
// With several threads it is one that all of them have work in, as many callers solve it at once,
// and all must find the same bits.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "batch.hpp"
#include "instruction_sets.hpp"

namespace {

using std::size_t;

struct Shape {
    size_t n_frames, n_bins, n_components;
};
constexpr Shape SMALL{200, 257, 16}, LARGE{100, 513, 128};

template <class T> struct Answer {
    std::vector<T> activations;
    std::vector<double> weighted, inverse, penalty_gradient;
    double divergence = 0;

    explicit Answer(const Shape& shape)
        : activations(shape.n_frames * shape.n_components),
          weighted(shape.n_components * shape.n_bins), inverse(weighted),
          penalty_gradient(shape.n_components) {}

    bool operator==(const Answer& other) const {
        return activations == other.activations && weighted == other.weighted &&
               inverse == other.inverse && divergence == other.divergence;
    }
};

template <class T>
Answer<T> solve(const ondes::Kernel<T>& kernel, const Shape& shape, bool plain, double sparsity,
                size_t n_threads) {
    const auto [n_frames, n_bins, n_components] = shape;
    unsigned state = 1;
    const auto draw = [&] { return ((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0; };
    std::vector<double> dictionary(n_components * n_bins);
    for (double& w : dictionary) w = 2 * draw() * draw() / n_bins;
    std::vector<T> values(n_frames * n_bins);
    for (T& v : values) v = T(4 * draw() * draw());
    std::vector<std::int32_t> groups(n_components);
    for (size_t k = 0; k < n_components; ++k) groups[k] = std::int32_t(k);
    const T momentum[] = {T(0), T(0.4), T(0.6), T(0.7), T(0.75), T(0.8)};

    const double floor = 1e-6;
    ondes::PackedModel<T> model(kernel, dictionary.data(), nullptr, floor, sparsity, n_components,
                                n_bins, n_threads);
    ondes::Problem<T> problem{};
    problem.n_components = n_components;
    problem.n_bins = n_bins;
    model.describe(problem);
    problem.floor = T(floor);
    problem.activation_floor = T(1e-20);
    problem.activation_ceiling = T(1e15);
    problem.tolerated_rise = T(1e-4);
    problem.max_steps = 20;
    problem.exponent = 1;
    problem.momentum = momentum;
    problem.n_momentum = plain ? 0 : std::size(momentum);
    problem.tol = plain ? T(0) : T(1e-3);
    problem.groups = groups.data();
    problem.n_groups = n_components;

    Answer<T> answer(shape);
    const ondes::Frames<T> frames{values.data(), nullptr, nullptr, answer.activations.data(),
                                  nullptr, nullptr};
    const ondes::Totals totals{answer.weighted.data(), answer.inverse.data(),
                               answer.penalty_gradient.data(), &answer.divergence};
    ondes::solve_batch(kernel, problem, frames, n_frames, n_threads, &totals);
    return answer;
}

template <class T> int run(const char* isa, const char* solver, size_t n_threads) {
    const bool plain = std::strcmp(solver, "plain") == 0;
    const bool kl = std::strcmp(solver, "kullback-leibler") == 0;  // with the default solver
    const double sparsity = kl ? 2 : 0;
    const Shape shape = n_threads > 1 ? LARGE : SMALL;
    const ondes::Kernel<T>& kernel = ondes::find_kernel<T>(
        isa, kl ? ondes::Loss::kullback_leibler : ondes::Loss::itakura_saito);
    const Answer<T> expected = solve(kernel, shape, plain, sparsity, 1);
    std::printf("divergence %.9g\n", expected.divergence);
    std::atomic<bool> same{true};
    std::vector<std::thread> callers;
    for (size_t i = 1; i < n_threads; ++i)
        callers.emplace_back([&] {
            for (int repeat = 0; repeat < 5; ++repeat)
                if (!(solve(kernel, shape, plain, sparsity, n_threads) == expected)) same = false;
        });
    for (std::thread& caller : callers) caller.join();
    return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: driver ISA float32|float64 "
                             "plain|default|kullback-leibler N_THREADS\n");
        return 2;
    }
    const bool single = std::strcmp(argv[2], "float32") == 0;
    const size_t n_threads = std::strtoul(argv[4], nullptr, 10);
    return single ? run<float>(argv[1], argv[3], n_threads)
                  : run<double>(argv[1], argv[3], n_threads);
}
