// A batch of frames over threads. It is cut into chunks by its length alone, and the chunks' sums
// are added in their order, so neither activations nor statistics depend on the thread count.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "problem.hpp"
#include "thread_pool.hpp"

namespace ondes {

// Room for `size` numbers on a cache line's boundary, not initialised. Large ones ask for large
// pages: a dictionary of megabytes is read across its rows, and has more small pages than the
// processor remembers.
template <class T> class Array {
  public:
    explicit Array(std::size_t size) {
        const std::size_t needed = std::max<std::size_t>(size * sizeof(T), 1);
        const std::size_t unit = needed < LARGE_PAGE ? 64 : LARGE_PAGE;
        const std::size_t bytes = (needed + unit - 1) / unit * unit;
        memory_.reset(static_cast<T*>(std::aligned_alloc(unit, bytes)));
        if (!memory_) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (unit == LARGE_PAGE) madvise(memory_.get(), bytes, MADV_HUGEPAGE);
#endif
    }
    T* get() const { return memory_.get(); }
    T& operator[](std::size_t i) const { return memory_.get()[i]; }

  private:
    static constexpr std::size_t LARGE_PAGE = 1 << 21;

    struct Free {
        void operator()(T* memory) const { std::free(memory); }
    };
    std::unique_ptr<T, Free> memory_;
};

// The dictionary and the background in the layouts and the type that the kernel reads.
template <class T> class PackedModel {
  public:
    PackedModel(const Kernel<T>& kernel, const double* dictionary, const double* background,
                double floor, double sparsity, std::size_t n_components, std::size_t n_bins)
        : n_rows_(n_components + (background != nullptr)),
          stride_((n_bins + kernel.lanes - 1) / kernel.lanes * kernel.lanes),
          is_sparse_(sparsity > 0), rows_(n_rows_ * stride_), columns_(n_bins * n_rows_),
          even_weights_(n_bins), constants_(n_components), sparsity_(n_components) {
        Array<double> model(n_bins);
        std::fill_n(model.get(), n_bins, floor);
        const double even = double(n_bins) / double(n_components);
        // A few rows at a time, while they are in the caches.
        const bool is = kernel.loss == Loss::itakura_saito;
        for (std::size_t first = 0; first < n_rows_; first += SIDE) {
            const std::size_t n = std::min(SIDE, n_rows_ - first);
            const double* row[SIDE];
            double sum[SIDE] = {}, squares[SIDE] = {};
            for (std::size_t i = 0; i < n; ++i) {
                const std::size_t k = first + i;
                row[i] = k < n_components ? dictionary + k * n_bins : background;
                std::copy_n(row[i], n_bins, &rows_[k * stride_]);
                std::fill_n(&rows_[k * stride_ + n_bins], stride_ - n_bins, T(0));
                if (k < n_components)
                    for (std::size_t bin = 0; bin < n_bins; ++bin) model[bin] += even * row[i][bin];
            }
            for (std::size_t bin = 0; bin < n_bins; ++bin)
                for (std::size_t i = 0; i < n; ++i)
                    columns_[bin * n_rows_ + first + i] = T(row[i][bin]);
            for (std::size_t bin = 0; bin < n_bins && (is_sparse_ || !is); ++bin)
                for (std::size_t i = 0; i < n; ++i) {
                    sum[i] += row[i][bin];
                    squares[i] += row[i][bin] * row[i][bin];
                }
            for (std::size_t i = 0; i < n && first + i < n_components; ++i) {
                const double slope = sparsity * std::sqrt(squares[i]);
                sparsity_[first + i] = T(slope);
                constants_[first + i] = T(is ? slope : sum[i] + slope);
            }
        }
        double total = 0;
        for (std::size_t bin = 0; bin < n_bins; ++bin) total += model[bin];
        for (std::size_t bin = 0; bin < n_bins; ++bin)
            even_weights_[bin] = T(is ? 1 / model[bin] : double(n_bins) / total);
    }

    void describe(Problem<T>& problem) const {
        problem.n_rows = n_rows_;
        problem.row_stride = stride_;
        problem.rows = rows_.get();
        problem.columns = columns_.get();
        problem.even_weights = even_weights_.get();
        problem.constants = constants_.get();
        problem.sparsity = is_sparse_ ? sparsity_.get() : nullptr;
    }

  private:
    static constexpr std::size_t SIDE = 16;

    std::size_t n_rows_, stride_;
    bool is_sparse_;
    Array<T> rows_, columns_, even_weights_, constants_, sparsity_;
};

// Small batches are cut finely, to keep all threads busy; in large ones a tile that refills its
// lanes from a long chunk wastes less.
inline std::size_t chunk_length(std::size_t n_frames, std::size_t tile) {
    return n_frames < 64 * tile ? tile : 8 * tile;
}

// Solve `n_frames` frames, and add up their statistics where `totals` is given.
template <class T>
void solve_batch(const Kernel<T>& kernel, const Problem<T>& problem, const Frames<T>& frames,
                 std::size_t n_frames, std::size_t n_threads, const Totals* totals) {
    const std::size_t length = chunk_length(n_frames, kernel.tile);
    const std::size_t n_chunks = (n_frames + length - 1) / length;
    n_threads = std::max<std::size_t>(std::min(n_threads, n_chunks), 1);

    const std::size_t n_workspace = kernel.workspace_size(problem);
    const std::size_t n_sums = totals ? problem.n_components * problem.row_stride : 0;
    Array<T> workspaces(n_threads * (n_workspace + 2 * n_sums));
    Array<double> gradients(n_threads * 2 * problem.n_components);

    std::atomic<std::size_t> next{0};
    std::size_t turn = 0;
    std::mutex mutex;
    std::condition_variable turned;
    ThreadPool::instance().run(n_threads, [&](std::size_t thread) {
        T* const workspace = workspaces.get() + thread * (n_workspace + 2 * n_sums);
        T* const weighted = workspace + n_workspace;
        double* const penalty_gradient = gradients.get() + thread * 2 * problem.n_components;
        for (std::size_t chunk; (chunk = next++) < n_chunks;) {
            const std::size_t first = chunk * length, last = std::min(first + length, n_frames);
            if (!totals) {
                kernel.encode(problem, frames, first, last, workspace);
                continue;
            }
            std::fill_n(weighted, 2 * n_sums, T(0));
            std::fill_n(penalty_gradient, 2 * problem.n_components, 0.0);
            ChunkSums<T> sums{weighted, weighted + n_sums, penalty_gradient,
                              penalty_gradient + problem.n_components, 0.0};
            kernel.summarise(problem, frames, first, last, workspace, sums);
            std::unique_lock lock(mutex);
            turned.wait(lock, [&] { return turn == chunk; });
            kernel.add(problem, sums, *totals);
            ++turn;
            turned.notify_all();
        }
    });
}

}  // namespace ondes
