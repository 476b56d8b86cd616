#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <base/log.hpp>
#include <base/units.hpp>
#include <identity/attestation.hpp>
#include <nlohmann/json.hpp>
#include <prove/proof.hpp>
#include <recipe/load.hpp>
#include <run/announce.hpp>

namespace trainer::run {
namespace {

void announce_steps(int64_t done, int64_t steps) {
  const std::string of = "step " + std::to_string(done);
  if (done > steps)
    log_warning(of + " is done, and run.steps asks for " + std::to_string(steps) +
                " only: nothing is trained, and what is drawn and exported is of " + of + ". For a run of " +
                std::to_string(steps) + " steps choose another run.output");
  else if (done == steps)
    log_info("nothing to train: " + of + " of " + std::to_string(steps) +
             " is done. To train longer raise run.steps; to start anew choose another run.output");
}

}  // namespace

void announce(assembly::Assembly& assembly, const Training& training, const preparation::Prepared& data,
              distributed::Group& ranks) {
  const recipe::Recipe& recipe = assembly.recipe;
  const assembly::LoadedModel& loaded = training.model();
  int64_t trained = 0;
  for (const Parameter* parameter : loaded.trained) trained += parameter->value().numel();
  log_info(loaded.model->describe());
  if (loaded.adapter)
    log_info(loaded.adapter->describe() + " on " + std::to_string(loaded.adapted.size()) + " layers, " +
             format_count(trained) + " trained parameters");
  else
    log_info("all " + format_count(trained) + " parameters are trained");
  const int64_t done = training.steps_done(), steps = recipe.run.steps;
  const std::string held_out =
      data.held_out > 0 ? " (" + std::to_string(data.held_out) + " more held out for validation)" : "";
  const std::string shared = ranks.size() > 1
                                 ? ", " + ranks.describe() + " with " + std::to_string(assembly.share.micro_batches) +
                                       " x " + std::to_string(assembly.share.micro_batch_size) + " samples of a step"
                                 : "";
  log_info(std::to_string(data.pictures) + (recipe.pictures() ? " picture" : " text") +
           (data.pictures == 1 ? "" : "s") + held_out + ", batch " + std::to_string(recipe.train.batch_size) + ", " +
           std::to_string(steps) + " steps" + shared +
           (done > 0 ? ", going on after step " + std::to_string(done) : ""));
  announce_steps(done, steps);
}

void describe_run(assembly::Assembly& assembly, RunFolder& folder, distributed::Group& ranks) {
  if (!ranks.writer()) return;
  const recipe::Recipe& recipe = assembly.recipe;
  const identity::Strangers strangers =
      identity::strangers_of(recipe, assembly.components.plugins(), assembly.strategies.plan());
  const bool known = identity::attested(strangers);
  if (!known) log_warning(identity::attestation_warning(strangers, recipe.file));
  const std::filesystem::path file = folder.path() / "run.json";
  const std::string text = read_file(file, 1 << 20, "run.json");
  require_shallow(text, file.string());
  auto json = nlohmann::ordered_json::parse(text);
  const auto before = json;
  json["strangers"] = identity::describe(strangers);
  json["attested"] = known;
  json["proof"] = prove::describe_stored_proof(folder.path(),
                                               identity::proof_subject(recipe, strangers, assembly.strategies.plan()));
  if (json != before) write_file_atomically(file, json.dump(1) + "\n");
  write_file_atomically(folder.path() / "recipe.toml", recipe::to_toml(recipe));
}

}  // namespace trainer::run
