// A gated recurrence along one of two axes: the inner loop of ondes.models.band_network, where the
// formula is.
#pragma once

#include "problem.hpp"
#include "simd.hpp"

namespace ondes::ONDES_ISA {

// h(n) = z h(n − 1) + (1 − z) c and the output h · max(g, 0); half of the states go through the
// rows of a line from the first to the last, half from the last to the first. Lines along time are
// advanced beside each other, so that memory is read in order.
class RecurrenceSolver {
  public:
    static size_t workspace_size(const Recurrence& given) {
        return (given.along_bands ? 1 : given.n_bands) * stride(given);
    }

    RecurrenceSolver(const Recurrence& given, float* workspace)
        : given_(given), half_(given.n_states / 2), stride_(stride(given)), states_(workspace) {}

    void run() {
        const size_t n_frames = given_.n_frames, n_bands = given_.n_bands;
        if (!given_.along_bands) {
            run_lines(0, n_frames, n_bands);
            return;
        }
        for (size_t frame = 0; frame < n_frames; ++frame) run_lines(frame * n_bands, n_bands, 1);
    }

  private:
    static constexpr size_t LANE = LANES<float>;

    static size_t stride(const Recurrence& given) {
        return (given.n_states / 2 + LANE - 1) / LANE * LANE;
    }

    // Lines of so many steps, whose rows lie beside each other, from the given row on.
    void run_lines(size_t first, size_t n_steps, size_t n_lines) {
        for (const bool is_backward : {false, true}) {
            for (size_t i = 0; i < n_lines * stride_; ++i) states_[i] = 0;
            for (size_t step = 0; step < n_steps; ++step) {
                const size_t n = is_backward ? n_steps - 1 - step : step;
                for (size_t line = 0; line < n_lines; ++line)
                    advance(first + n * n_lines + line, is_backward ? half_ : 0,
                            states_ + line * stride_);
            }
        }
    }

    void advance(size_t row, size_t from, float* state) const {
        const size_t n_states = given_.n_states;
        const float* const gates = given_.gates + 3 * row * n_states + from;
        const float* const bias = given_.bias + from;
        float* const out = given_.out + row * n_states + from;
        for (size_t i = 0; i < half_; i += LANE) {
            const size_t n = half_ - i < LANE ? half_ - i : LANE;
            const auto gate = [&](size_t which) {
                return load(gates + which * n_states + i, n) + load(bias + which * n_states + i, n);
            };
            const Vec<float> keep = 1 / (1 + quick_exp2<float>(gate(0) * float(-1 / LOG_TWO)));
            const Vec<float> h = keep * at(state + i) + (1 - keep) * gate(1);
            at(state + i) = h;
            store(out + i, h * larger(gate(2), Vec<float>{}), n);
        }
    }

    static Vec<float> load(const float* from, size_t n) {
        if (n == LANE) return loose(from);
        Vec<float> x = {};
        for (size_t i = 0; i < n; ++i) x[i] = from[i];
        return x;
    }
    static void store(float* to, Vec<float> x, size_t n) {
        for (size_t i = 0; i < n; ++i) to[i] = x[i];
    }

    const Recurrence& given_;
    const size_t half_, stride_;
    float* const states_;
};

}  // namespace ondes::ONDES_ISA
