// Threads that wait for work. One pool a process: made at first use, made anew in a forked child
// (where the parent's threads do not exist), joined at exit, unless a daemon thread has work there.
//
// Whoever waits looks around for a moment before going to sleep: mini-batches come every half a
// millisecond, and to be woken takes as long as to solve one. Meanwhile it yields its core.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ondes {

class ThreadPool {
  public:
    using Body = std::function<void(std::size_t)>;

    static ThreadPool& instance() {
        static std::atomic<ThreadPool*> pool{nullptr};
        static const bool registered = [] {
            pthread_atfork(nullptr, nullptr, [] { pool = nullptr; });
            // The pool itself is never freed: a thread may still be inside `run`.
            std::atexit([] { if (ThreadPool* p = pool) p->stop(); });
            return true;
        }();
        (void)registered;
        if (!pool) {
            ThreadPool* none = nullptr;
            ThreadPool* const made = new ThreadPool;
            if (!pool.compare_exchange_strong(none, made)) delete made;
        }
        return *pool;
    }

    // Run body(0) here and body(1) … body(n - 1) on whatever threads come in time. The bodies share
    // the work among themselves, so body(0) alone would do all of it.
    void run(std::size_t n, const Body& body) {
        if (n <= 1) return body(0);
        Job job{body, 1, n, 0};
        std::unique_lock lock(mutex_);
        add_workers(n - 1);
        const auto place = jobs_.insert(jobs_.end(), &job);
        ++n_posted_;
        lock.unlock();
        for (std::size_t i = 1; i < n; ++i) wake_.notify_one();
        body(0);
        lock.lock();
        if (job.next < job.n) jobs_.erase(place);
        linger(lock, [&] { return job.n_running == 0; });
        idle_.wait(lock, [&] { return job.n_running == 0; });
    }

  private:
    struct Job {
        const Body& body;
        std::size_t next, n;
        std::atomic<std::size_t> n_running;
    };

    static constexpr std::chrono::microseconds PATIENCE{500};

    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    std::list<Job*> jobs_;
    std::atomic<std::size_t> n_posted_{0};
    std::vector<std::thread> workers_;
    std::size_t n_busy_ = 0;
    std::atomic<bool> stopping_{false};

    void add_workers(std::size_t n) {
        try {
            while (workers_.size() < n && !stopping_) workers_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            // No more threads to be had: those there are do the work.
        }
    }

    template <class Done> static void linger(std::unique_lock<std::mutex>& lock, Done done) {
        const auto deadline = std::chrono::steady_clock::now() + PATIENCE;
        lock.unlock();
        while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
        lock.lock();
    }

    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            const std::size_t n_seen = n_posted_;
            if (jobs_.empty()) linger(lock, [&] { return n_posted_ != n_seen || stopping_; });
            wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
            if (stopping_) return;
            Job& job = *jobs_.front();
            const std::size_t index = job.next++;
            if (job.next == job.n) jobs_.pop_front();
            ++job.n_running;
            ++n_busy_;
            lock.unlock();
            job.body(index);
            lock.lock();
            --n_busy_;
            if (--job.n_running == 0) idle_.notify_all();
        }
    }

    void stop() {
        std::unique_lock lock(mutex_);
        stopping_ = true;
        const bool is_idle = n_busy_ == 0;
        lock.unlock();
        wake_.notify_all();
        for (std::thread& worker : workers_) is_idle ? worker.join() : worker.detach();
    }
};

}  // namespace ondes
