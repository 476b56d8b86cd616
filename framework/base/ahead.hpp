/// @file Values made one ahead, on a thread of their own, while the one before is used.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace trainer {

/// All calls of `make` come from one thread of this object's own, one after the other: it need not be thread-safe.
/// Which keys are made, and in which order, follows from the calls of `take` alone.
template <typename Key, typename Value>
class Ahead {
 public:
  explicit Ahead(std::function<Value(const Key&)> make) : make_(std::move(make)), thread_([this] { work(); }) {}
  /// Waits for a `make` that runs.
  ~Ahead() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  /// The value of `key`, then `next` is begun. Waits for it; at once when it was the last call's `next` and is made.
  /// What `make` throws for a key comes out here, when that key is taken; a `next` that is never taken throws nothing.
  /// From one thread.
  Value take(const Key& key, const Key& next) {
    std::unique_lock lock(mutex_);
    if (!(made_ && made_->key == key) && !(busy_ && *busy_ == key)) asked_ = key;
    changed_.notify_all();
    changed_.wait(lock, [&] { return made_ && made_->key == key; });
    Made made = std::move(*made_);
    made_.reset();
    asked_ = next;
    lock.unlock();
    changed_.notify_all();
    if (made.error) std::rethrow_exception(made.error);
    return std::move(*made.value);
  }

 private:
  struct Made {
    Key key;
    std::optional<Value> value{};
    std::exception_ptr error{};
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || asked_; });
      if (stopped_) return;
      busy_ = std::exchange(asked_, std::nullopt);
      Made made{*busy_};
      lock.unlock();
      try {
        made.value.emplace(make_(made.key));
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      busy_.reset();
      made_ = std::move(made);
      changed_.notify_all();
    }
  }

  std::function<Value(const Key&)> make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Key> asked_;  ///< to be made
  std::optional<Key> busy_;   ///< being made
  std::optional<Made> made_;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace trainer
