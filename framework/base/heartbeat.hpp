/// @file Work that takes long tells that it gets on: a file was read, a tensor written, a picture decoded. Who waits
/// for it can then tell work from a hang.
#pragma once

#include <functional>

namespace trainer {

/// A bit of work is done. Heard by the innermost Listener of this thread; next to nothing when there is none.
void beat();

/// Hears the beats of this thread as long as it lives.
class Listener {
 public:
  explicit Listener(std::function<void()> heard);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  friend void beat();
  std::function<void()> heard_;
  Listener* outer_;
};

}  // namespace trainer
