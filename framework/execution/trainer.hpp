/// @file The training loop: what one optimiser step is, and how steps make a run.
#pragma once

#include <distributed/group.hpp>
#include <distributed/overlap.hpp>
#include <execution/batch_source.hpp>
#include <execution/stage_executor.hpp>
#include <optim/adamw.hpp>
#include <optim/ema.hpp>
#include <optim/fused_backward.hpp>
#include <optim/lr_schedule.hpp>

#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace trainer::execution {

/// What a run consists of; all borrowed for the trainer's life.
struct Parts {
  Model& model;
  const Objective& objective;
  const MemoryStack& memory;
  const PlacementPlan& placement;
  const Random& random;
  BatchSource& data;
  optim::AdamW& optimizer;
  optim::Ema* ema = nullptr;  ///< null: none
  optim::LrSchedule schedule;
  double max_grad_norm = 1.0;                   ///< 0: no clipping
  std::string plugins = "model and objective";  ///< who is named when a call into them throws
  /// Null: parameters are updated after backward. Else in it, by this; needs max_grad_norm 0 and one micro-batch.
  optim::FusedBackward* fused = nullptr;
  /// The ranks that train together; `data` gives this rank's share of every step, `placement` runs it.
  distributed::Group* ranks = &distributed::Group::alone();
  bool overlap = false;  ///< gradients are exchanged while the backward makes others: same bits, another thread
  /// For devices that compute beside the host: the update (without effect when a number is not finite) and the next
  /// step's first samples are on their way before loss and norm are read, once for both. Same bits.
  bool update_first = false;
  /// Called before every step of the placement's schedule; may be empty.
  std::function<void(const ScheduleStep& step)> before_step{};
  /// The same in each of its forwards, when what enters the first block is there.
  std::function<void(const ScheduleStep& step)> before_blocks{};
};

struct StepReport {
  int64_t step = 0;      ///< steps done, this one included
  double loss = 0;       ///< mean over the step's samples, of all ranks
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double seconds = 0;
};

class Trainer {
 public:
  Trainer(Parts parts, int64_t first_step);

  /// One optimiser step over all its micro-batches. Throws Error (non_finite) before the update when loss or gradient
  /// is not finite, naming step, files, timesteps and the first part of the model where it happened. With an update in
  /// backward, gradients that came before the bad one have then changed their parameters; further steps are refused.
  /// Of several ranks all throw: the first that met it tells the details, the others name it.
  StepReport step();
  /// The same on tensors without values, for a dry run: no number is read, so none is checked or reported.
  /// `before_update`: called when all micro-batches are through.
  void dry_step(const std::function<void()>& before_update = [] {});

  /// Steps until `steps` are done; after each calls `after_step`, which returns false to stop early.
  void fit(int64_t steps, const std::function<bool(const StepReport&)>& after_step);

  [[nodiscard]] int64_t steps_done() const { return step_; }
  /// How the gradients of the last step reached the other ranks; empty unless they may go while the backward runs.
  [[nodiscard]] std::string exchange_text() const;
  RecomputeState& recompute_state() { return recompute_state_; }

 private:
  /// Forward and backward of all micro-batches in the placement's order; returns their losses (detached, unscaled).
  std::vector<at::Tensor> accumulate_gradients();
  /// What follows the update once a step.
  void finish_step();
  Example example(int64_t step, int64_t micro) const;
  /// The one that was made ahead, if it is this one.
  Example take_example(int64_t micro);
  void make_next_example();
  /// Clipping and the optimiser; where backward did the update, nothing is left to do. `veto` (fp32, may be undefined):
  /// 1 leaves everything as it is.
  void update(double learning_rate, const at::Tensor& norm, const at::Tensor& veto);
  /// Where the update comes before anybody knows: whether it may have an effect, decided on the device.
  [[nodiscard]] bool updates_first() const { return parts_.update_first && parts_.fused == nullptr; }
  /// Loss and norm.
  void read_numbers(StepReport& report, const at::Tensor& loss, const at::Tensor& norm) const;
  /// Makes every gradient the ranks' mean; returns the first rank whose own was not finite.
  distributed::First average_gradients();
  /// `own`: this rank's losses; `all`: those of all ranks; `gradient`: whose gradient was not finite.
  [[noreturn]] void report_non_finite(const std::vector<at::Tensor>& own, const at::Tensor& all,
                                      distributed::First gradient);
  [[noreturn]] void report_loss(const std::vector<at::Tensor>& losses);
  [[noreturn]] void report_gradient(std::size_t micro_batches);
  [[nodiscard]] std::string weights_after() const;

  Parts parts_;
  StageExecutor stages_;
  std::optional<distributed::OverlappedAverage> overlap_;
  int64_t step_;                  ///< optimiser steps done
  bool first_step_done_ = false;  ///< of this process
  struct NextExample {
    int64_t step;
    Example example;
    std::exception_ptr error;  ///< what making it threw, for the step that wants it
  };
  std::optional<NextExample> next_;  ///< its first micro-batch
  RecomputeState recompute_state_;
};

}  // namespace trainer::execution
