/// @file Heavy operations of one block run, seen below autograd: recorded in forward, replayed in the recompute.
/// Private to the SDK.
///
/// A boxed kernel at the ADInplaceOrView dispatch key of each heavy ATen operator sits between the autograd kernel and
/// the backend: in the recompute it can answer with a kept output, or with a placeholder for a value that nothing
/// reads, while autograd above builds its node from the recomputed inputs. The SDK's own heavy function (the frozen
/// linear) enters by the same door and hides what it does inside. Operators and the experiments that chose them:
/// docs/adr/0004-op-level-recompute.md.
#pragma once

#include <ATen/core/ivalue.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/recompute.hpp>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trainer {

/// To every FlopCounter of this thread.
void count_flops(double flops);

namespace recompute {

/// A replay made other heavy calls than its forward.
struct OtherCalls : Error {
  explicit OtherCalls(const std::string& message) : Error(ExitCode::failed, message) {}
};

enum class Poison { none, nan, positive, negative };

class OpRegion {
 public:
  using Outputs = std::vector<c10::IValue>;
  enum class Mode { record, replay };

  /// `policy` may be null: nothing is kept.
  OpRegion(const Block& block, SavePolicy* policy) : block_(block), policy_(policy) {}

  /// Makes a region active on this thread for one run of the block. Throws when one is active already (a recomputed
  /// block inside a recomputed block).
  class Scope {
   public:
    Scope(OpRegion& region, Mode mode);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    OpRegion* before_;
  };

  /// After a replay: throws unless it made as many heavy calls as the forward.
  void require_all_replayed() const;

  // Settings of the next replay.
  std::set<int64_t> dead;            ///< positions whose value nothing reads: placeholders
  std::map<int64_t, Poison> poison;  ///< positions whose value is overwritten, to find dead ones
  bool keep_outputs = false;         ///< kept outputs stay after the replay (retained graph, trial runs)

  [[nodiscard]] const std::vector<HeavyOp>& calls() const { return calls_; }
  [[nodiscard]] bool is_kept(int64_t position) const { return kept_.contains(position); }
  [[nodiscard]] int64_t kept_bytes() const;
  [[nodiscard]] int64_t ran() const { return ran_; }  ///< heavy calls really executed in the last run
  [[nodiscard]] double ran_flops() const { return ran_flops_; }
  [[nodiscard]] bool has_floating_outputs(int64_t position) const;

  /// One heavy call: `arguments` describes it, `compute` runs it; `flops` are per element of its first output.
  Outputs call(const std::string& op, const std::string& arguments, double flops,
               const std::function<Outputs()>& compute);

 private:
  /// An output without its data; holds no memory on any device.
  struct Like {
    bool tensor = false;  ///< false: undefined, or no tensor
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };
  struct Kept {
    Outputs outputs;
    std::vector<int64_t> versions;
  };
  Outputs record(HeavyOp op, const std::function<Outputs()>& compute);
  Outputs replay(const HeavyOp& op, const std::function<Outputs()>& compute);
  Outputs take_kept(int64_t position);
  [[noreturn]] void mismatch(const HeavyOp& op) const;
  [[nodiscard]] std::string where(const HeavyOp& op) const;
  [[nodiscard]] std::string progress() const;  ///< how far the run is, e.g. "after its mm #1 (...)"

  const Block& block_;
  SavePolicy* policy_;
  Mode mode_ = Mode::record;
  std::vector<HeavyOp> calls_;  ///< of the forward
  std::vector<std::vector<Like>> likes_;
  std::map<int64_t, Kept> kept_;
  std::map<std::string, int64_t> counts_;  ///< calls of each op so far in this run
  int64_t position_ = 0, ran_ = 0;
  double ran_flops_ = 0;
};

/// The heavy calls of one run as text, to compare runs that are not recorded for a replay.
struct OpTrace {
  std::vector<std::string> calls;  ///< "mm(Float[2, 3], Float[3, 4])"
  bool nested = false;             ///< another block ran inside: its own verification makes calls too

  /// Runs on this thread are traced as long as it lives; null: they are not.
  class Scope {
   public:
    explicit Scope(OpTrace* trace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    OpTrace* before_;
  };
};

/// The active region of this thread, or null.
OpRegion* active_region();
/// The active trace of this thread, or null.
OpTrace* active_trace();
/// One heavy call, for whoever looks: the trace, and the region, which may answer for `compute`.
OpRegion::Outputs heavy_call(const std::string& op, const std::string& arguments, double flops,
                             const std::function<OpRegion::Outputs()>& compute);
/// Neither a region nor a trace is active as long as it lives: for what a heavy call does inside.
class SuspendRegion {
 public:
  SuspendRegion();
  ~SuspendRegion();
  SuspendRegion(const SuspendRegion&) = delete;
  SuspendRegion& operator=(const SuspendRegion&) = delete;

 private:
  OpRegion* before_;
  OpTrace* trace_before_;
};

/// Registers the kernels, once per process. Called before the first region is made.
void install_heavy_kernels();

/// Short text of a tensor's shape and dtype, for matching and messages.
std::string text_of(const at::Tensor& tensor);

}  // namespace recompute
}  // namespace trainer
