// A batch of frames over threads: first they share its frames, which are solved each on its own, then
// the bins of the statistics, each summed over all frames in order. So neither activations nor
// statistics depend on the thread count.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>

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

// body(i, thread) for each i below `n`, by at most so many threads.
template <class Body> void share(std::size_t n, std::size_t n_threads, Body body) {
    std::atomic<std::size_t> next{0};
    ThreadPool::instance().run(std::min(n, n_threads), [&](std::size_t thread) {
        for (std::size_t i; (i = next++) < n;) body(i, thread);
    });
}

// So many threads that each has work for longer than it takes to wake it.
inline std::size_t worthwhile(std::size_t n_threads, std::size_t work) {
    return std::min(n_threads, 1 + work / (std::size_t(1) << 16));
}

// The dictionary and the background in the layouts and the type that the kernel reads.
template <class T> class PackedModel {
  public:
    PackedModel(const Kernel<T>& kernel, const double* dictionary, const double* background,
                double floor, double sparsity, std::size_t n_components, std::size_t n_bins,
                std::size_t n_threads)
        : n_components_(n_components), n_bins_(n_bins),
          n_rows_(n_components + (background != nullptr)),
          stride_((n_bins + kernel.lanes - 1) / kernel.lanes * kernel.lanes),
          is_itakura_saito_(kernel.loss == Loss::itakura_saito), is_sparse_(sparsity > 0),
          dictionary_(dictionary), background_(background), rows_(n_rows_ * stride_),
          columns_(n_bins * n_rows_), even_weights_(n_bins), constants_(n_components),
          sparsity_(n_components) {
        Array<double> model(n_bins);
        const std::size_t n_row_parts = (n_rows_ + SIDE - 1) / SIDE;
        const std::size_t n_bin_parts = (n_bins + SPAN - 1) / SPAN;
        n_threads = worthwhile(n_threads, n_rows_ * n_bins);
        share(n_row_parts + n_bin_parts, n_threads, [&](std::size_t i, std::size_t) {
            if (i < n_row_parts)
                pack_rows(i * SIDE, std::min((i + 1) * SIDE, n_rows_), sparsity);
            else
                pack_bins((i - n_row_parts) * SPAN,
                          std::min((i - n_row_parts + 1) * SPAN, n_bins), floor, model.get());
        });
        double total = 0;
        for (std::size_t bin = 0; bin < n_bins; ++bin) total += model[bin];
        for (std::size_t bin = 0; bin < n_bins; ++bin)
            even_weights_[bin] = T(is_itakura_saito_ ? 1 / model[bin] : double(n_bins) / total);
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
    static constexpr std::size_t SIDE = 16, SPAN = 256;

    std::size_t n_components_, n_bins_, n_rows_, stride_;
    bool is_itakura_saito_, is_sparse_;
    const double *dictionary_, *background_;
    Array<T> rows_, columns_, even_weights_, constants_, sparsity_;

    const double* row(std::size_t k) const {
        return k < n_components_ ? dictionary_ + k * n_bins_ : background_;
    }

    void pack_rows(std::size_t first, std::size_t last, double sparsity) {
        for (std::size_t k = first; k < last; ++k) {
            std::copy_n(row(k), n_bins_, &rows_[k * stride_]);
            std::fill_n(&rows_[k * stride_ + n_bins_], stride_ - n_bins_, T(0));
        }
        if (is_itakura_saito_ && !is_sparse_)
            return std::fill(&constants_[first], &constants_[std::min(last, n_components_)], T(0));
        double sum[SIDE] = {}, squares[SIDE] = {};
        for (std::size_t bin = 0; bin < n_bins_; ++bin)
            for (std::size_t k = first; k < last; ++k) {
                const double w = row(k)[bin];
                sum[k - first] += w;
                squares[k - first] += w * w;
            }
        for (std::size_t k = first; k < std::min(last, n_components_); ++k) {
            const double slope = sparsity * std::sqrt(squares[k - first]);
            sparsity_[k] = T(slope);
            constants_[k] = T(is_itakura_saito_ ? slope : sum[k - first] + slope);
        }
    }

    // A few rows at a time, while they are in the caches.
    void pack_bins(std::size_t begin, std::size_t end, double floor, double* model) {
        std::fill(model + begin, model + end, floor);
        const double even = double(n_bins_) / double(n_components_);
        for (std::size_t first = 0; first < n_rows_; first += SIDE) {
            const std::size_t n = std::min(SIDE, n_rows_ - first);
            const double* rows[SIDE];
            for (std::size_t i = 0; i < n; ++i) rows[i] = row(first + i);
            for (std::size_t i = 0; i < n && first + i < n_components_; ++i)
                for (std::size_t bin = begin; bin < end; ++bin) model[bin] += even * rows[i][bin];
            for (std::size_t bin = begin; bin < end; ++bin)
                for (std::size_t i = 0; i < n; ++i)
                    columns_[bin * n_rows_ + first + i] = T(rows[i][bin]);
        }
    }
};

// How frames are dealt out to be solved. A tile that refills its lanes from many frames wastes less;
// a small batch is cut finely, to keep all threads busy. In a narrow tile a frame takes a quarter
// longer.
template <class T> struct Deal {
    std::size_t length, n_pieces;
    bool is_narrow;

    Deal(const Kernel<T>& kernel, std::size_t chunk, std::size_t n_frames, std::size_t n_threads) {
        const auto pieces = [&](std::size_t n) { return (n_frames + n - 1) / n; };
        const auto duration = [&](std::size_t n) {
            return (pieces(n) + n_threads - 1) / n_threads * std::min(n, n_frames);
        };
        is_narrow = 5 * duration(kernel.lanes) < 4 * duration(chunk);
        length = is_narrow ? kernel.lanes : chunk;
        n_pieces = pieces(length);
    }
};

// Solve `n_frames` frames, and add up their statistics where `totals` is given.
template <class T>
void solve_batch(const Kernel<T>& kernel, const Problem<T>& problem, const Frames<T>& frames,
                 std::size_t n_frames, std::size_t n_threads, const Totals* totals) {
    // By the number of frames alone: sums over chunks are rounded.
    const std::size_t chunk = n_frames < 64 * kernel.tile ? kernel.tile : 8 * kernel.tile;
    const std::size_t n_panels = kernel.n_panels(problem);
    const Deal<T> deal(kernel, chunk, n_frames, n_threads);
    n_threads = std::min(n_threads, std::max(deal.n_pieces, totals ? n_panels + 1 : 1));
    const std::size_t n_workspace = kernel.workspace_size(problem);
    const Array<T> workspaces(n_threads * n_workspace);
    share(deal.n_pieces, n_threads, [&](std::size_t i, std::size_t thread) {
        kernel.encode(problem, frames, i * deal.length, std::min((i + 1) * deal.length, n_frames),
                      deal.is_narrow, workspaces.get() + thread * n_workspace);
    });
    if (!totals) return;

    const std::size_t n_sums = problem.n_components * problem.row_stride;
    const std::size_t n_tiles = (n_frames + kernel.tile - 1) / kernel.tile;
    const Array<T> sums(2 * n_sums);
    const Array<double> rest(2 * problem.n_components);
    const Array<double> divergences(n_tiles * n_panels * kernel.lanes);
    const Chunks<T> chunks{n_frames,   chunk,      n_panels,         sums.get(),
                           sums.get() + n_sums, rest.get(), divergences.get()};
    n_threads = worthwhile(n_threads, n_frames * n_sums / 16);
    const std::size_t n_strips = n_threads == 1 ? 1 : std::min(n_panels, 2 * n_threads);
    share(n_strips + 1, n_threads, [&](std::size_t i, std::size_t thread) {
        T* const workspace = workspaces.get() + thread * n_workspace;
        if (i == n_strips) return kernel.add_rest(problem, frames, chunks, workspace, *totals);
        kernel.add_panels(problem, frames, chunks, n_panels * i / n_strips,
                          n_panels * (i + 1) / n_strips, workspace, *totals);
    });
    const std::size_t n_chunk = chunk / kernel.tile * n_panels * kernel.lanes;
    const double* const end = divergences.get() + n_tiles * n_panels * kernel.lanes;
    for (const double* d = divergences.get(); d < end; d += n_chunk)
        *totals->divergence += std::accumulate(d, std::min(d + n_chunk, end), 0.0);
}

// The same of sparse frames, under Kullback-Leibler. `problem` lacks what is made of the dictionary
// here. The bins are cut into strips whose sums stay in the cache.
template <class T>
void solve_sparse_batch(const SparseKernel<T>& kernel, Problem<T> problem, const SparseFrames<T>& frames,
                  const double* dictionary, double sparsity, std::size_t n_threads,
                  double* totals) {
    constexpr std::size_t SPAN = 64, PIECE = 16, STRIP = std::size_t(1) << 16;
    const std::size_t n_components = problem.n_components, n_bins = problem.n_bins;
    const std::size_t width = kernel.padded(n_components);
    const Array<T> columns(n_bins * width), constants(width);
    const Array<double> row_sums(n_components);
    const std::size_t n_spans = (n_bins + SPAN - 1) / SPAN;
    std::fill_n(constants.get(), width, T(1));
    share(n_spans + n_components, worthwhile(n_threads, n_bins * width),
          [&](std::size_t i, std::size_t) {
              if (i >= n_spans) {
                  const std::size_t k = i - n_spans;
                  double sum = 0, squares = 0;
                  for (std::size_t bin = 0; bin < n_bins; ++bin) {
                      const double w = dictionary[k * n_bins + bin];
                      sum += w;
                      squares += w * w;
                  }
                  row_sums[k] = sum;
                  constants[k] = T(sum + sparsity * std::sqrt(squares));
                  return;
              }
              const std::size_t first = i * SPAN, last = std::min(first + SPAN, n_bins);
              std::fill(&columns[first * width], columns.get() + last * width, T(0));
              for (std::size_t k = 0; k < n_components; ++k)
                  for (std::size_t bin = first; bin < last; ++bin)
                      columns[bin * width + k] = T(dictionary[k * n_bins + bin]);
          });
    const double even = double(n_bins) / double(n_components);
    const double total = std::accumulate(row_sums.get(), row_sums.get() + n_components, 0.0);
    const T even_weight = T(1 / (even * total / double(n_bins) + double(problem.floor)));
    problem.columns = columns.get();
    problem.constants = constants.get();
    problem.even_weights = &even_weight;

    const std::size_t n_pieces = (frames.n + PIECE - 1) / PIECE;
    n_threads = std::max<std::size_t>(std::min(n_threads, n_pieces), 1);
    const std::size_t n_workspace = kernel.workspace_size(problem, frames);
    const Array<T> workspaces(n_threads * n_workspace);
    share(n_pieces, n_threads, [&](std::size_t i, std::size_t thread) {
        kernel.encode(problem, frames, i * PIECE, std::min((i + 1) * PIECE, frames.n),
                      workspaces.get() + thread * n_workspace);
    });
    if (!totals) return;

    const std::size_t n_strips =
        std::min((n_bins * width + STRIP - 1) / STRIP + (n_threads > 1 ? 4 * n_threads : 0), n_bins);
    const std::size_t n_sums = ((n_bins + n_strips - 1) / n_strips + 1) * width;
    const Array<double> sums(n_threads * n_sums);
    share(n_strips, n_threads, [&](std::size_t i, std::size_t thread) {
        kernel.add(problem, frames, n_bins * i / n_strips, n_bins * (i + 1) / n_strips,
                   sums.get() + thread * n_sums, totals);
    });
}

}  // namespace ondes
