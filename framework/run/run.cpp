#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/version.h>
#include <assembly/device.hpp>
#include <base/files.hpp>
#include <base/heap.hpp>
#include <base/log.hpp>
#include <base/unfinished.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/signals.hpp>
#include <identity/identities.hpp>
#include <identity/same_run.hpp>
#include <nlohmann/json.hpp>
#include <recipe/load.hpp>
#include <run/run.hpp>

namespace trainer::run {

namespace fs = std::filesystem;

namespace {

/// Nothing is to be saved while the model is loaded, which may take minutes.
void end_when_stopped() {
  if (const int number = checkpoint::stop_signal(); number != 0)
    throw Error(ExitCode::preempted, "stopped by signal " + std::to_string(number) +
                                         " while the model was loaded; run the same command again");
}

}  // namespace

Run::Run(assembly::Assembly& assembly, const RunOptions& request, distributed::Group& ranks)
    : assembly_(assembly),
      request_(request),
      ranks_(ranks),
      recipe_(assembly.recipe),
      folder_(recipe_.run.output),
      console_(preparation::console_options(request.quiet)),
      random_(static_cast<uint64_t>(recipe_.run.seed)),
      samples_(folder_ / "samples"),
      record_(recipe_, console_),
      profiler_(ranks.writer() ? request.profile : 0, folder_ / "profile", assembly.devices.training(),
                [this] { lock_->require_mine(); }),
      phases_(assembly.devices.training()) {
  if (ranks_.writer()) {
    lock_.emplace(folder_);
    for (const char* below : {"", "lora", "model"}) remove_unfinished(folder_ / below);
    samples_.remove_unfinished();
    run_id_ = identity::run_id_of(folder_);
    places_.emplace(folder_, run_id_,
                    checkpoint::PlacesOptions{recipe_.checkpoint.fallback, recipe_.checkpoint.reserve,
                                              [this] { lock_->require_mine(); }});
    identity::require_resumable(request_.resume, folder_, places_->steps());
    require_recipe_of_folder();
  }
  checkpoint::catch_stop_signals();
  if (recipe_.train.threads > 0) at::set_num_threads(static_cast<int>(recipe_.train.threads));
}

void Run::agree() {
  run_id_ = ranks_.from_writer(run_id_);
  if (!fs::exists(folder_ / "run.json") || identity::run_id_of(folder_) != run_id_)
    throw Error(ExitCode::not_found, folder_.string() +
                                         ": what rank 0 writes there is not seen here; run.output and cache.folder "
                                         "must lie on a file system that all machines share");
  preparation::agree(assembly_, ranks_);
}

void Run::require_recipe_of_folder() const {
  if (request_.resume == "never") return;
  if (const std::optional<checkpoint::Before> before = checkpoint::recipe_before(folder_, recipe_.checkpoint.fallback))
    identity::require_same_recipe(identity::parse_recipe(before->recipe, assembly_.components.plugins().found()),
                                  recipe_, folder_, before->what, request_.resume_with);
  if (identity::names_checkpoint(request_.resume))  // it is read whole, and looked at again, when all else is there
    if (const std::optional<std::string> recipe = checkpoint::recipe_in(request_.resume))
      identity::require_same_recipe(identity::parse_recipe(*recipe, assembly_.components.plugins().found()), recipe_,
                                    folder_, checkpoint::kTheCheckpoint, request_.resume_with);
  if (!identity::names_checkpoint(request_.resume)) checkpoint::require_committed(folder_, places_->steps());
}

void Run::prepare() {
  agree();
  if (ranks_.size() > 1 && device().is_cuda()) ranks_.use(at::kCUDA, assembly::open_nccl(request_.libraries));
  require_budgets();
  // What does not fit together is told before hours of encoding. With a budget the plan decides what fits.
  const auto placement = assembly_.components.placement();
  if (recipe_.memory.budget == 0)
    assembly_.models.load(assembly_.strategies.stack(), {assembly::Weights::none, placement.get()});
  prepared_ = phases_.during("cache", [&] { return preparation::prepare(assembly_, console_, ranks_); });
  if (ranks_.writer()) lock_->require_mine();  // encoding takes hours, and what follows writes into the folder
  return_freed_memory();                       // of the encoders
  for (const std::string& note : prepared_.notes) log_info(note);
  const distributed::LongWork work(ranks_, "loading the model", distributed::LongWork::When::all_live);
  plan_memory();
  loaded_ = phases_.during("load", [&] {
    return assembly_.models.load(assembly_.strategies.stack(),
                                 {assembly::Weights::file, placement.get(), &end_when_stopped});
  });
  weights_ = identity::identities_of_weights(recipe_, *loaded_.source);
  if (const std::string idle = loaded_.memory.idle(); !idle.empty()) log_warning(idle);
  objective_ = assembly_.components.objective();
  const recipe::Optimizer& o = recipe_.optimizer;
  optimizer_.emplace(loaded_.trained, optim::AdamWOptions{o.betas[0], o.betas[1], o.eps, o.weight_decay});
  if (o.fused_backward) fused_.emplace(*optimizer_);
  if (recipe_.train.ema_decay > 0) ema_.emplace(loaded_.trained, recipe_.train.ema_decay);
  resume();
  announce();
  begin_record();
}

void Run::begin_record() {
  if (!ranks_.writer()) return;
  lock_->require_mine();  // loading takes minutes
  if (steps_done() > 0 && steps_done() < recipe_.run.steps) {
    attempts_.emplace(folder_, steps_done(), recipe_.checkpoint.fallback, [this] { return lock_->is_mine(); });
    if (!attempts_->warning().empty()) log_warning(attempts_->warning());
  }
  checkpoint::note_committed(folder_, run_id_,
                             last_checkpoint_.empty()
                                 ? std::nullopt
                                 : std::optional(checkpoint::Committed{steps_done(), fs::absolute(last_checkpoint_)}));
  note_attestation();
  write_file_atomically(folder_ / "recipe.toml", recipe::to_toml(recipe_));
  record_.open(folder_, steps_done());
  if (steps_done() < recipe_.run.steps)
    places_->reserve_for(state(), [this](const std::string& problem) { warn(problem); });
}

std::optional<checkpoint::Loaded> Run::find_checkpoint() {
  std::optional<checkpoint::Loaded> found;
  if (ranks_.writer()) {  // alone, since looking renames what is damaged
    std::vector<std::string> notes;
    if (identity::names_checkpoint(request_.resume))
      found = checkpoint::load(request_.resume);
    else if (request_.resume != "never")
      found = places_->newest(notes);
    for (const std::string& note : notes) log_warning(note);
    if (found) require_same(*found);
  }
  const std::string folder = ranks_.from_writer(found ? fs::absolute(found->folder).string() : "");
  if (!found && !folder.empty()) found = checkpoint::load(folder);
  return found;
}

void Run::require_same(const checkpoint::Loaded& found) const {
  const checkpoint::Progress saved = checkpoint::read_progress(found);
  if (identity::names_checkpoint(request_.resume) && !places_->steps().empty() && places_->steps().back() > saved.step)
    throw Error(ExitCode::locked, folder_.string() + ": holds checkpoints of later steps than " + request_.resume +
                                      "; choose another run.output, so that they are not lost");
  identity::require_same_recipe(identity::parse_recipe(saved.recipe, assembly_.components.plugins().found()), recipe_,
                                folder_, checkpoint::kTheCheckpoint, request_.resume_with);
  identity::require_same_content(found, fingerprints(), recipe_, request_.resume_with,
                                 [this](const std::string& key, const std::string& now) {
                                   return identity::as_first_recorded(assembly_.encoders, key, now);
                                 });
  if (const std::string changed = identity::inexact_because(found, fingerprints()); !changed.empty())
    log_warning("the run goes on, but perhaps not to the last bit as it would have without a stop:" + changed);
}

execution::BatchSource& Run::batches() {
  // Where devices compute, a processor is free for it; where processors do, it would take what the backward needs.
  if (!device().is_cpu() && !ahead_) ahead_.emplace(*prepared_.batches, device().is_cuda());
  return ahead_ ? *ahead_ : *prepared_.batches;
}

void Run::resume() {
  execution::Parts parts{
      *loaded_.model, *objective_, loaded_.memory,          loaded_.placement,   random_,
      batches(),      *optimizer_, ema_ ? &*ema_ : nullptr, optim::LrSchedule{}, recipe_.train.max_grad_norm};
  const recipe::Optimizer& o = recipe_.optimizer;
  parts.plugins = recipe_.model.kind + "\" with \"" + recipe_.objective.kind;
  parts.fused = fused_ ? &*fused_ : nullptr;
  parts.schedule = {o.schedule, o.lr, o.warmup_steps, recipe_.run.steps, o.min_factor, o.cycles};
  parts.ranks = &ranks_;
  parts.overlap = !device().is_cpu();  // for the same reason as batches()
  parts.update_first = !device().is_cpu();
  parts.before_step = [this](const ScheduleStep& entry) {
    if (steps_) steps_->before(entry);
  };
  int64_t step = 0;
  if (const std::optional<checkpoint::Loaded> found = find_checkpoint()) {
    const checkpoint::Progress saved = checkpoint::read_progress(*found);
    checkpoint::Live parts_now = live();
    checkpoint::restore(*found, parts_now);
    if (recipe_.train.threads > 0 && recipe_.train.threads != saved.threads)
      log_warning("train.threads = " + std::to_string(recipe_.train.threads) +
                  " is not used: the checkpoint was made with " + std::to_string(saved.threads) +
                  " threads, and results depend on it");
    at::set_num_threads(saved.threads);
    record_.set_loss(saved.loss);
    step = saved.step;
    last_checkpoint_ = found->folder;
    if (ranks_.writer() && !identity::names_checkpoint(request_.resume))
      if (const std::string later = identity::later_result(folder_, step); !later.empty()) log_warning(later);
  }
  first_step_ = step;
  trainer_.emplace(std::move(parts), step);
  if (recipe_.memory.verify == "always") trainer_->recompute_state().always = true;
  trainer_->recompute_state().name_of = [this](const at::Tensor& leaf) {
    for (const Parameter* parameter : loaded_.trained)
      if (parameter->value().is_same(leaf)) return parameter->name();
    return std::string();
  };
}

std::map<std::string, std::string> Run::fingerprints() const {
  std::map<std::string, std::string> all = identity::fingerprints_of_program(assembly_.components, ranks_.size());
  all["data"] = prepared_.data_identity;
  all["encoders"] = prepared_.encoders_identity;
  all["formats"] = loaded_.memory.format_name();
  all.insert(weights_.begin(), weights_.end());
  return all;
}

checkpoint::Live Run::live() { return {loaded_.trained, *optimizer_, ema_ ? &*ema_ : nullptr}; }

at::Device Run::device() const { return assembly_.devices.training().front(); }

int64_t Run::steps_done() const { return trainer_->steps_done(); }

bool Run::train() {
  if (steps_done() < recipe_.run.steps) make_up();
  record_.begin();
  steps_.emplace(assembly_.devices.training(), loaded_.placement, loaded_.trained);
  stop_ = ranks_.first(checkpoint::stop_signal());
  if (stop_.rank < 0)
    trainer_->fit(recipe_.run.steps, [this](const execution::StepReport& report) { return after_step(report); });
  console_.clear();
  tell(profiler_.end());
  if (steps_done() >= recipe_.run.steps) return true;
  save_checkpoint(Save::at_the_end);
  if (attempts_) attempts_->ended_well();
  log_info("stopped by signal " + std::to_string(stop_.value) +
           (ranks_.size() > 1 ? ", which rank " + std::to_string(stop_.rank) + " got first," : "") + " after step " +
           std::to_string(steps_done()) + "; saved " + last_checkpoint_.string());
  log_info("run the same command again to go on from there");
  return false;
}

bool Run::after_step(const execution::StepReport& report) {
  steps_->end_step();
  record_.step(report, phases_, *steps_);
  log_recompute();
  if (report.step == first_step_ + 2) tell(trainer_->exchange_text());  // the first step learns what comes when
  tell(profiler_.after_step());
  const int64_t step = report.step;
  if (attempts_) attempts_->reached(step);
  const bool last = step >= recipe_.run.steps;
  ranks_.progress("training, step " + std::to_string(step + (last ? 0 : 1)));
  tested_.end_step();
  stop_ = ranks_.first(checkpoint::stop_signal());
  if (last) return true;
  if (stop_.rank < 0) between_steps(step);
  const bool stopped = stop_.rank >= 0;
  if (stopped && tested_.may_save(trainer_->recompute_state(), ranks_)) return false;
  if (stopped) {
    console_.clear();
    log_info("stopping after one more step, in which what the recompute leaves out is tested again");
  }
  steps_->begin_step();
  // Of a validation and of pictures, too, since a signal may come in them.
  const bool may_end = is_saved(step + 1) || is_validated(step + 1) || is_sampled(step + 1);
  if (stopped || may_end) tested_.test_next(trainer_->recompute_state());
  return true;
}

void Run::between_steps(int64_t step) {
  if (is_saved(step))
    save_on_the_way([this] {
      save_checkpoint(Save::on_the_way);
      export_weights();
    });
  if (is_validated(step)) {
    validate();
    stop_ = ranks_.first(checkpoint::stop_signal());  // so that the run goes on here, and measures again
    if (stop_.rank >= 0) return;
  }
  if (is_sampled(step)) {
    draw_samples("step " + std::to_string(step));
    stop_ = ranks_.first(checkpoint::stop_signal());
  }
}

void Run::tell(const std::string& profile) {
  if (profile.empty()) return;
  console_.clear();
  log_info(profile);
}

bool Run::is_validated(int64_t step) const {
  const int64_t every = recipe_.validation.every;
  return prepared_.validation && (step == 0 || step >= recipe_.run.steps || (every > 0 && step % every == 0));
}

void Run::validate() {
  // Saved first, so that a run that is ended meanwhile measures when it goes on.
  if (!ranks_.from_writer(holds_step(record_.validations(), steps_done()) ? "measured" : "").empty()) return;
  const distributed::LongWork work(ranks_, "validating", distributed::LongWork::When::all_live);
  console_.clear();
  const optim::Averaged averaged(ema_ ? &*ema_ : nullptr);
  ValidationParts parts{*loaded_.model, *objective_, loaded_.memory, loaded_.placement, *prepared_.validation};
  parts.timesteps = recipe_.validation.timesteps;
  parts.seed = static_cast<uint64_t>(recipe_.validation.seed);
  parts.plugins = recipe_.model.kind + "\" with \"" + recipe_.objective.kind;
  const std::string step = "step " + std::to_string(steps_done());
  ValidationWatch watch;
  watch.progress = [&](int64_t done, int64_t total) { console_.phase(done, total, "validation, " + step); };
  watch.stop = [] { return checkpoint::stop_signal() != 0; };
  watch.warn = [&](const std::string& problem) { warn("no validation at " + step + ": " + problem); };
  const auto result = phases_.during("validate", [&] { return run::validate(parts, ranks_, watch); });
  return_freed_memory();
  cut_short_ |= !result && checkpoint::stop_signal() != 0;
  if (!result || !ranks_.writer()) return;
  for (const std::string& file : result->bad) warn("the validation loss of " + file + " at " + step + " is not finite");
  record_.validation(steps_done(), *result);
  console_.clear();
  log_info("validation loss at " + step + ": " + std::to_string(result->loss));
}

}  // namespace trainer::run
