/// @file `trainer run RECIPE`: from the recipe to the results, in the order in which it happens. Every rank of a run
/// executes it; rank 0 writes the files and speaks to the user.
#include <ATen/Parallel.h>
#include <assembly/assemble.hpp>
#include <base/heap.hpp>
#include <base/log.hpp>
#include <checkpoint/signals.hpp>
#include <host/host.hpp>
#include <identity/identities.hpp>
#include <planning/plan_for_run.hpp>
#include <run/announce.hpp>
#include <run/checkpoints.hpp>
#include <run/results.hpp>
#include <run/samples.hpp>
#include <run/stop.hpp>
#include <run/validation.hpp>

namespace trainer::host {
namespace {

struct Parts {
  const recipe::Recipe& recipe;
  run::Training& training;
  run::Checkpoints& checkpoints;
  run::Validation& validation;
  run::Samples& samples;
  run::Results& results;
  run::Record& record;
  run::Stop& stop;
};

/// A checkpoint, and the weights as a file. On a full disk training continues.
void save_on_the_way(Parts& parts) {
  parts.record.despite_full_disk(parts.training.steps_done(), [&] {
    parts.checkpoints.save(parts.training, run::Save::on_the_way);
    parts.results.export_weights(parts.training);
  });
}

/// Before the first step: loss and pictures of the untrained model. After a resume: what a killed run left out.
void before_training(Parts& parts, bool resumed_itself) {
  const int64_t step = parts.training.steps_done();
  if (parts.validation.is_due(step)) parts.validation.measure(parts.training);
  if (step == 0) {
    if (parts.recipe.sample.before) parts.samples.draw(parts.training, "before");
  } else if (resumed_itself && checkpoint::stop_signal() == 0) {
    if (parts.checkpoints.is_due(step))
      parts.record.despite_full_disk(step, [&] { parts.results.export_missing(parts.training); });
    parts.samples.draw_missing(parts.training);
  }
}

/// What the recipe wants after this step: a checkpoint, the validation loss, pictures.
void after_step(Parts& parts, int64_t step) {
  if (parts.checkpoints.is_due(step)) save_on_the_way(parts);
  if (parts.validation.is_due(step)) {
    parts.validation.measure(parts.training);
    if (parts.stop.look()) return;  // the next process measures again
  }
  if (parts.samples.is_due(step)) {
    parts.samples.draw(parts.training, "step " + std::to_string(step));
    parts.stop.look();
  }
}

/// The loop of steps. Returns false when a signal ended it before the last one.
bool train(Parts& parts) {
  const int64_t last = parts.recipe.run.steps;
  parts.record.begin();
  parts.stop.look();
  while (parts.training.steps_done() < last) {
    // A checkpoint is made of a step that tested the recompute. A signal may come in a validation or in pictures.
    const int64_t next = parts.training.steps_done() + 1;
    if (parts.stop.asked()) {
      if (parts.training.may_be_saved()) break;
      parts.record.info("stopping after one more step, in which what the recompute leaves out is tested again");
    }
    if (parts.stop.asked() || parts.checkpoints.is_due(next) || parts.validation.is_due(next) ||
        parts.samples.is_due(next))
      parts.training.test_recompute();
    const execution::StepReport report = parts.training.step();  // forward, backward, clip, optimizer, average
    parts.record.step(report, parts.training);
    parts.checkpoints.reached(report.step);
    if (!parts.stop.look() && report.step < last) after_step(parts, report.step);
  }
  parts.record.end();
  return parts.training.steps_done() >= last;
}

/// After the last step: checkpoint, validation loss, weights, pictures, summary. Returns false when a signal cut it
/// short: the same command makes what is missing.
bool finish(Parts& parts) {
  parts.stop.forget_cut_short();
  parts.checkpoints.save(parts.training, run::Save::at_the_end);
  if (parts.validation.is_due(parts.training.steps_done())) parts.validation.measure(parts.training);
  parts.checkpoints.release_room();
  parts.checkpoints.end();
  parts.results.export_missing(parts.training);
  parts.samples.draw_last(parts.training);
  parts.results.print(parts.training, parts.samples.last(), parts.checkpoints.last());
  if (!parts.stop.look_cut_short()) return true;
  log_info("stopped by " + parts.stop.text() + " after the last step; run the same command again for what is missing");
  return false;
}

/// After a signal: the state is saved, and the same command continues from there.
void stop(Parts& parts) {
  parts.checkpoints.save(parts.training, run::Save::at_the_end);
  parts.checkpoints.end();
  log_info("stopped by " + parts.stop.text() + " after step " + std::to_string(parts.training.steps_done()) +
           "; saved " + parts.checkpoints.last().string());
  log_info("run the same command again to go on from there");
}

}  // namespace

bool run_recipe(const RunRequest& request, const Member& member, distributed::Group& ranks) {
  // Plugins: manifests are read. A library is opened when the recipe's component is made.
  plugin::Loader plugins(request.plugins);
  // The recipe and its parts: devices, components (model, memory strategies, placement, ...), encoders, the loader of
  // the model. With --resume-with checkpoint, the recipe is the one that the checkpoint was trained with.
  assembly::Assembly assembly(resumed_recipe(request, plugins), plugins, request.libraries, member.place);
  const recipe::Recipe& recipe = assembly.recipe;
  const std::vector<at::Device>& devices = assembly.devices.training();

  // The run folder is locked. Then all ranks compare what they are about to run.
  run::RunFolder folder(recipe, {request.resume, request.resume_with}, plugins.found(), ranks);
  checkpoint::catch_stop_signals();
  if (recipe.train.threads > 0) at::set_num_threads(static_cast<int>(recipe.train.threads));
  folder.require_shared();
  preparation::agree(assembly, ranks);
  if (ranks.size() > 1 && devices.front().is_cuda()) ranks.use(at::kCUDA, assembly::open_nccl(request.libraries));
  run::Record record(recipe, folder, devices,
                     {preparation::console_options(member.quiet), request.json, request.profile}, ranks);

  // What cannot fit is refused before hours of encoding. With memory.budget the plan decides what fits.
  planning::require_budgets(assembly, ranks);
  const auto placement = assembly.components.placement();
  if (recipe.memory.budget == 0)
    assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none, placement.get()});

  // Data: scan, encode what the cache lacks, free the encoders.
  const preparation::Prepared data =
      record.during("cache", [&] { return preparation::prepare(assembly, record.console(), ranks); });
  if (ranks.writer()) folder.require_mine();  // encoding takes hours
  return_freed_memory();
  for (const std::string& note : data.notes) log_info(note);

  // The model, with the recipe's memory strategies or those that the plan for memory.budget chooses.
  std::optional<distributed::LongWork> loading(std::in_place, ranks, "loading the model",
                                               distributed::LongWork::When::all_live);
  if (recipe.memory.budget > 0) {
    assembly.strategies.use(planning::plan_for_run(assembly, data, folder.resumable(), ranks));
    record.info(describe(*assembly.strategies.plan()));
  }
  const assembly::LoadOptions whole{assembly::Weights::file, placement.get(), &run::end_loading_when_stopped};
  assembly::LoadedModel model =
      record.during("load", [&] { return assembly.models.load(assembly.strategies.stack(), whole); });
  if (const std::string idle = model.memory.idle(); !idle.empty()) log_warning(idle);
  identity::Fingerprints fingerprints(assembly.components, model, data.data_identity, data.encoders_identity,
                                      ranks.size());
  run::Training training(recipe, std::move(model), assembly.components.objective(), *data.batches, devices, ranks);

  // Resume: from the newest whole checkpoint, when it is of this recipe, these weights and this data.
  run::Checkpoints checkpoints(
      recipe, plugins.found(), folder, std::move(fingerprints),
      [&](const std::string& key, const std::string& now) {
        return identity::as_first_recorded(assembly.encoders, key, now);
      },
      record, ranks);
  checkpoints.resume(training);
  run::announce(assembly, training, data, ranks);
  checkpoints.begin(training);
  run::describe_run(assembly, folder, ranks);
  record.open(training.steps_done());
  checkpoints.reserve_room(training);
  loading.reset();

  // The loop of steps, then the results.
  run::Stop stop_signals(ranks);
  run::Validation validation(recipe, data.validation.get(), stop_signals, record, ranks);
  run::Samples samples(
      recipe, data.samples, [&] { return assembly.encoders.autoencoder(); }, folder, stop_signals, record, ranks);
  run::Results results(recipe, folder, record, ranks);
  Parts parts{recipe, training, checkpoints, validation, samples, results, record, stop_signals};
  if (training.steps_done() < recipe.run.steps) before_training(parts, folder.resumes_itself());
  if (train(parts)) return finish(parts);
  stop(parts);
  return false;
}

}  // namespace trainer::host
