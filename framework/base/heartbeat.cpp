#include <base/heartbeat.hpp>

#include <utility>

namespace trainer {
namespace {

thread_local Listener* innermost = nullptr;

}  // namespace

void beat() {
  if (innermost != nullptr) innermost->heard_();
}

Listener::Listener(std::function<void()> heard) : heard_(std::move(heard)), outer_(std::exchange(innermost, this)) {}

Listener::~Listener() { innermost = outer_; }

}  // namespace trainer
