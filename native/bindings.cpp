// The kernel's Python module: checks shapes and types, and releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/complex.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <complex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "batch.hpp"
#include "instruction_sets.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ondes {

template <class T, size_t D> using Out = nb::ndarray<T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;
template <class T, size_t D> using In = Out<const T, D>;
template <class A> using Maybe = std::optional<A>;

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

template <class A> auto data_or_null(const Maybe<A>& array) {
    return array ? array->data() : nullptr;
}

// While one of these exists, other Python threads run. An interpreter that shuts down ends daemon
// threads that ask for the GIL, by unwinding their stacks, which C++ functions that throw nothing
// answer with an abort: such a thread waits here for the end of the process instead.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    WithoutGil(const WithoutGil&) = delete;
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }

  private:
    PyThreadState* const state_;
};

template <class T>
void describe(Problem<T>& problem, double floor, double activation_floor, double activation_ceiling,
              double tolerated_rise, size_t max_steps, double exponent,
              const std::vector<T>& momentum, double tol, const std::string& penalty,
              double strength, double offset, const In<std::int32_t, 1>& groups, size_t k,
              size_t n_bins) {
    require(groups.shape(0) == k, "groups must be (n_components)");
    for (size_t i = 0; i < k; ++i) {
        require(groups.data()[i] >= 0 && size_t(groups.data()[i]) < k, "groups must count from 0");
        problem.n_groups = std::max(problem.n_groups, size_t(groups.data()[i]) + 1);
    }
    problem.n_components = k;
    problem.n_bins = n_bins;
    problem.floor = T(floor);
    problem.activation_floor = T(activation_floor);
    problem.activation_ceiling = T(activation_ceiling);
    problem.tolerated_rise = T(tolerated_rise);
    problem.max_steps = max_steps;
    problem.exponent = T(exponent);
    problem.momentum = momentum.data();
    problem.n_momentum = momentum.size();
    problem.tol = T(tol);
    problem.penalty = penalty == "l1"          ? Penalty::l1
                      : penalty == "group_log" ? Penalty::group_log
                                               : Penalty::none;
    problem.strength = T(strength);
    problem.offset = T(offset);
    problem.groups = groups.data();
}

template <class T>
void solve(const std::string& isa, In<T, 2> values, In<double, 2> dictionary, double floor,
           double activation_floor, double activation_ceiling, double tolerated_rise,
           Out<T, 2> activations,
           Maybe<In<T, 2>> start, Maybe<In<double, 1>> background,
           Maybe<In<T, 1>> background_activation, Maybe<In<T, 2>> weights,
           Maybe<In<T, 1>> frame_weights, size_t max_steps, double exponent,
           const std::vector<T>& momentum, double tol, const std::string& penalty,
           double strength, double offset, In<std::int32_t, 1> groups, double beta, double sparsity,
           Maybe<Out<double, 2>> weighted, Maybe<Out<double, 2>> inverse,
           Maybe<Out<double, 1>> penalty_gradient, Maybe<Out<double, 1>> divergence,
           size_t n_threads) {
    const size_t n = values.shape(0), n_bins = values.shape(1), k = dictionary.shape(0);
    const auto is = [](const auto& array, size_t rows, size_t columns) {
        return array.shape(0) == rows && array.shape(1) == columns;
    };
    require(k > 0 && n_bins > 0, "the dictionary is empty");
    require(dictionary.shape(1) == n_bins, "dictionary and frames differ in bins");
    require(is(activations, n, k), "activations must be (n_frames, n_components)");
    require(!start || is(*start, n, k), "start must be (n_frames, n_components)");
    require(background.has_value() == background_activation.has_value() &&
                (!background || (background->shape(0) == n_bins &&
                                 background_activation->shape(0) == n)),
            "background must be (n_bins), its activation (n_frames)");
    require(beta == 0 || beta == 1, "beta must be 0 or 1");
    require(sparsity >= 0, "sparsity must not be negative");
    require(!weights || is(*weights, n, n_bins), "weights must be (n_frames, n_bins)");
    require(!frame_weights || frame_weights->shape(0) == n, "frame_weights must be (n_frames)");
    const bool summing = weighted.has_value(), has_one_inverse = beta == 1 && !weights;
    require(inverse.has_value() == summing && penalty_gradient.has_value() == summing &&
                divergence.has_value() == summing &&
                (!summing || (is(*weighted, k, n_bins) && is(*inverse, k, has_one_inverse ? 1 : n_bins) &&
                              penalty_gradient->shape(0) == k && divergence->shape(0) == 1)),
            "sums must be (n_components, n_bins), the same or for KL (n_components, 1), "
            "(n_components) and (1)");
    require(n_threads > 0, "n_threads must be positive");

    Problem<T> problem{};
    describe(problem, floor, activation_floor, activation_ceiling, tolerated_rise, max_steps,
             exponent, momentum, tol, penalty, strength, offset, groups, k, n_bins);
    const Loss loss = beta == 0 ? Loss::itakura_saito : Loss::kullback_leibler;
    const Weights mode = weights         ? Weights::entries
                         : frame_weights ? Weights::frames
                                         : Weights::none;
    const Kernel<T>& kernel = find_kernel<T>(isa, loss, mode);

    const WithoutGil without_gil;
    const PackedModel<T> model(kernel, dictionary.data(), data_or_null(background), floor,
                               sparsity, k, n_bins, n_threads);
    model.describe(problem);
    const Frames<T> frames{values.data(), data_or_null(background_activation),
                           data_or_null(start), activations.data(), data_or_null(weights),
                           data_or_null(frame_weights)};
    const Totals totals{data_or_null(weighted), data_or_null(inverse),
                        data_or_null(penalty_gradient), data_or_null(divergence)};
    solve_batch(kernel, problem, frames, n, n_threads, summing ? &totals : nullptr);
}

template <class T>
void solve_sparse(const std::string& isa, In<std::int64_t, 1> starts, In<std::int32_t, 1> bins,
                  In<T, 1> values, In<double, 2> dictionary, double floor, double activation_floor,
                  double activation_ceiling, double tolerated_rise, Out<T, 2> activations,
                  Maybe<In<T, 2>> start, Maybe<In<T, 1>> spectrum, Maybe<In<T, 1>> background,
                  size_t max_steps, double exponent, const std::vector<T>& momentum, double tol,
                  const std::string& penalty, double strength, double offset,
                  In<std::int32_t, 1> groups, double sparsity, Maybe<In<T, 1>> weights,
                  Maybe<Out<T, 1>> ratios, Maybe<Out<double, 1>> logs,
                  Maybe<Out<double, 2>> weighted, size_t n_threads) {
    require(starts.shape(0) > 0, "starts must be (n_frames + 1)");
    const size_t n = starts.shape(0) - 1, n_nonzero = bins.shape(0);
    const size_t k = dictionary.shape(0), n_bins = dictionary.shape(1);
    const auto is = [](const auto& array, size_t rows, size_t columns) {
        return array.shape(0) == rows && array.shape(1) == columns;
    };
    require(k > 0 && n_bins > 0, "the dictionary is empty");
    require(values.shape(0) == n_nonzero, "bins and values differ in number");
    require(is(activations, n, k), "activations must be (n_frames, n_components)");
    require(!start || is(*start, n, k), "start must be (n_frames, n_components)");
    require(spectrum.has_value() == background.has_value() &&
                (!spectrum || (spectrum->shape(0) == n_bins && background->shape(0) == n)),
            "the background's spectrum must be (n_bins), its activation (n_frames)");
    require(!weights || weights->shape(0) == n, "weights must be (n_frames)");
    const bool summing = weighted.has_value();
    require(ratios.has_value() == summing && logs.has_value() == summing &&
                (!summing || (ratios->shape(0) == n_nonzero && logs->shape(0) == n &&
                              is(*weighted, k, n_bins))),
            "sums must be (n_nonzero), (n_frames) and (n_components, n_bins)");
    require(sparsity >= 0, "sparsity must not be negative");
    require(n_threads > 0, "n_threads must be positive");
    Problem<T> problem{};
    describe(problem, floor, activation_floor, activation_ceiling, tolerated_rise, max_steps,
             exponent, momentum, tol, penalty, strength, offset, groups, k, n_bins);
    const SparseKernel<T>& kernel = find_sparse_kernel<T>(isa);

    const WithoutGil without_gil;
    SparseFrames<T> frames{n,
                           0,
                           starts.data(),
                           bins.data(),
                           values.data(),
                           data_or_null(spectrum),
                           data_or_null(background),
                           data_or_null(start),
                           data_or_null(weights),
                           activations.data(),
                           data_or_null(ratios),
                           data_or_null(logs)};
    frames.check(n_nonzero, n_bins);
    solve_sparse_batch(kernel, problem, frames, dictionary.data(), sparsity, n_threads,
                       data_or_null(weighted));
}

template <class T> void define_solve(nb::module_& module) {
    module.def("solve", &solve<T>, "isa"_a, "values"_a.noconvert(), "dictionary"_a.noconvert(),
               "floor"_a, "activation_floor"_a, "activation_ceiling"_a, "tolerated_rise"_a,
               "activations"_a.noconvert(),
               "start"_a.noconvert().none(), "background"_a.noconvert().none(),
               "background_activation"_a.noconvert().none(), "weights"_a.noconvert().none(),
               "frame_weights"_a.noconvert().none(), "max_steps"_a, "exponent"_a,
               "momentum"_a, "tol"_a, "penalty"_a, "strength"_a, "offset"_a,
               "groups"_a.noconvert(), "beta"_a, "sparsity"_a, "weighted"_a.noconvert().none(),
               "inverse"_a.noconvert().none(), "penalty_gradient"_a.noconvert().none(),
               "divergence"_a.noconvert().none(), "n_threads"_a);
    module.def("solve_sparse", &solve_sparse<T>, "isa"_a, "starts"_a.noconvert(),
               "bins"_a.noconvert(), "values"_a.noconvert(), "dictionary"_a.noconvert(), "floor"_a,
               "activation_floor"_a, "activation_ceiling"_a, "tolerated_rise"_a,
               "activations"_a.noconvert(), "start"_a.noconvert().none(),
               "spectrum"_a.noconvert().none(), "background"_a.noconvert().none(), "max_steps"_a,
               "exponent"_a, "momentum"_a, "tol"_a, "penalty"_a, "strength"_a, "offset"_a,
               "groups"_a.noconvert(), "sparsity"_a, "weights"_a.noconvert().none(),
               "ratios"_a.noconvert().none(), "logs"_a.noconvert().none(),
               "weighted"_a.noconvert().none(), "n_threads"_a);
}

void sum_pairs(const std::string& isa, In<std::complex<float>, 3> earlier,
               In<std::complex<float>, 3> later, In<std::complex<float>, 1> turn,
               In<std::complex<float>, 1> turn_later, In<float, 3> shapes, Out<float, 2> sums) {
    const size_t n = earlier.shape(0), n_channels = earlier.shape(1), n_bins = earlier.shape(2);
    require(later.shape(0) == n && later.shape(1) == n_channels && later.shape(2) == n_bins,
            "frames differ in shape");
    require(turn.shape(0) == n_bins && turn_later.shape(0) == n_bins && shapes.shape(1) == n_bins,
            "turns and shapes must have the bins of the frames");
    require(shapes.shape(0) > 0 && shapes.shape(0) <= n_bins, "distances must be below n_bins");
    require(sums.shape(0) == n && sums.shape(1) == shapes.shape(2),
            "sums must be (n_rows, n_signals)");
    const auto numbers = [](const auto& array) {
        return reinterpret_cast<const float*>(array.data());
    };
    const Kernels& kernels = find_kernels(isa);

    const WithoutGil without_gil;
    const PairSums pairs{n, n_channels, n_bins, shapes.shape(2), shapes.shape(0),
                         numbers(earlier), numbers(later), numbers(turn), numbers(turn_later),
                         shapes.data(), sums.data()};
    const Array<float> workspace(kernels.pair_workspace_size(pairs));
    kernels.sum_pairs(pairs, workspace.get());
}

void recur(const std::string& isa, In<float, 4> gates, In<float, 2> bias, bool along_bands,
           Out<float, 3> out) {
    const size_t n = gates.shape(0), n_bands = gates.shape(1), n_states = gates.shape(3);
    require(gates.shape(2) == 3 && n_states % 2 == 0,
            "gates must be (n_frames, n_bands, 3, n_states), with an even number of states");
    require(bias.shape(0) == 3 && bias.shape(1) == n_states, "bias must be (3, n_states)");
    require(out.shape(0) == n && out.shape(1) == n_bands && out.shape(2) == n_states,
            "out must be (n_frames, n_bands, n_states)");
    const Kernels& kernels = find_kernels(isa);

    const WithoutGil without_gil;
    const Recurrence given{n, n_bands, n_states, along_bands, gates.data(), bias.data(), out.data()};
    const Array<float> workspace(kernels.recurrence_workspace_size(given));
    kernels.recur(given, workspace.get());
}

}  // namespace ondes

NB_MODULE(_native, module) {
    ondes::ThreadPool::instance();  // so that its fork handler is in place before any thread
    ondes::define_solve<float>(module);
    ondes::define_solve<double>(module);
    module.def("sum_pairs", &ondes::sum_pairs, "isa"_a, "earlier"_a.noconvert(),
               "later"_a.noconvert(), "turn"_a.noconvert(), "turn_later"_a.noconvert(),
               "shapes"_a.noconvert(), "sums"_a.noconvert());
    module.def("recur", &ondes::recur, "isa"_a, "gates"_a.noconvert(), "bias"_a.noconvert(),
               "along_bands"_a, "out"_a.noconvert());
    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const auto& [name, kernels] : ondes::instruction_sets()) names.push_back(name);
        return names;
    });
}
