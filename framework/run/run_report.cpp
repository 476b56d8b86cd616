/// @file What a run tells its user at the start, on the way and at the end.
#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <base/log.hpp>
#include <base/printable.hpp>
#include <base/units.hpp>
#include <nlohmann/json.hpp>
#include <identity/attestation.hpp>
#include <prove/proof.hpp>
#include <run/run.hpp>

#include <cstdio>

namespace trainer::run {

namespace fs = std::filesystem;

void Run::announce() const {
  int64_t trained = 0;
  for (const Parameter* parameter : loaded_.trained) trained += parameter->value().numel();
  log_info(loaded_.model->describe());
  if (loaded_.adapter)
    log_info(loaded_.adapter->describe() + " on " + std::to_string(loaded_.adapted.size()) + " layers, " +
             format_count(trained) + " trained parameters");
  else
    log_info("all " + format_count(trained) + " parameters are trained");
  const std::string done = std::to_string(steps_done()), steps = std::to_string(recipe_.run.steps);
  log_info(
      std::to_string(prepared_.pictures) + (recipe_.pictures() ? " picture" : " text") +
      (prepared_.pictures == 1 ? "" : "s") +
      (prepared_.held_out > 0 ? " (" + std::to_string(prepared_.held_out) + " more held out for validation)" : "") +
      ", batch " + std::to_string(recipe_.train.batch_size) + ", " + steps + " steps" +
      (ranks_.size() > 1 ? ", " + ranks_.describe() + " with " + std::to_string(assembly_.share().micro_batches) +
                               " x " + std::to_string(assembly_.share().micro_batch_size) + " samples of a step"
                         : "") +
      (steps_done() > 0 ? ", going on after step " + done : ""));
  if (steps_done() > recipe_.run.steps)
    log_warning("step " + done + " is done, and run.steps asks for " + steps +
                " only: nothing is trained, and what is drawn and exported is of step " + done + ". For a run of " +
                steps + " steps choose another run.output");
  else if (steps_done() == recipe_.run.steps)
    log_info("nothing to train: step " + done + " of " + steps +
             " is done. To train longer raise run.steps; to start "
             "anew choose another run.output");
}

void Run::note_attestation() const {
  const identity::Strangers strangers = identity::strangers_of(recipe_, assembly_.loader(), assembly_.plan());
  const bool known = identity::attested(strangers);
  if (!known) log_warning(identity::attestation_warning(strangers, recipe_.file));
  const fs::path file = folder_ / "run.json";
  const std::string text = read_file(file, 1 << 20, "run.json");
  require_shallow(text, file.string());
  auto json = nlohmann::ordered_json::parse(text);
  const auto before = json;
  json["strangers"] = identity::describe(strangers);
  json["attested"] = known;
  json["proof"] = prove::describe_stored_proof(folder_, prove::proof_subject(recipe_, strangers, assembly_.plan()));
  if (json != before) write_file_atomically(file, json.dump(1) + "\n");
}

void Run::log_recompute() {
  if (recompute_logged_) return;
  recompute_logged_ = true;
  console_.clear();
  for (const auto& [type, r] : trainer_->recompute_state().reports) {
    char text[256];
    std::snprintf(text, sizeof text,
                  "%lld of %lld heavy operations run again, %lld kept (%s a block), elided "
                  "%.0f %% of the forward FLOPs",
                  static_cast<long long>(r.recomputed_calls), static_cast<long long>(r.forward_calls),
                  static_cast<long long>(r.kept_calls), format_bytes(static_cast<double>(r.kept_bytes)).c_str(),
                  r.forward_flops > 0 ? 100.0 * r.elided_flops / r.forward_flops : 0.0);
    log_info("recompute of \"" + type + "\" blocks: " + text);
  }
}

void Run::print_results() const {
  const metrics::MemoryUse memory = metrics::memory_use();
  const metrics::LogGroups bytes = bytes_by_device(phases_, steps_ ? steps_->uses() : std::vector<StepUse>());
  if (request_.json) {
    nlohmann::ordered_json json{
        {"steps", steps_done()},           {"loss", record_.loss().value()},          {"lora", last_export_.string()},
        {"samples", last_grid_.string()},  {"checkpoint", last_checkpoint_.string()}, {"peak_memory", memory.peak},
        {"bytes", metrics::to_json(bytes)}};
    if (!record_.validations().empty()) json["validation"] = to_json(record_.validations());
    std::printf("%s\n", printable_json(json).c_str());
    return;
  }
  if (const Record::EarlyLoss early = record_.early_loss(); early.step > 0)
    std::printf("loss        %.4f (step %lld) -> %.4f, both smoothed\n", early.value,
                static_cast<long long>(early.step), record_.loss().value());
  if (const std::string validation = in_words(record_.validations()); !validation.empty())
    std::printf("validation  %s\n", validation.c_str());
  std::printf("%-11s %s\n", loaded_.adapter ? "LoRA" : "model", printable(last_export_.string()).c_str());
  if (!loaded_.adapter && recipe_.pictures())
    std::printf("            draw with it: trainer sample %s --set model.path=%s --prompt \"...\"\n",
                printable(recipe_.file).c_str(), printable(last_export_.string()).c_str());
  if (!last_grid_.empty()) std::printf("samples     %s\n", printable(last_grid_.string()).c_str());
  std::printf("checkpoint  %s\nlog         %s\n", printable(last_checkpoint_.string()).c_str(),
              printable((folder_ / "log.jsonl").string()).c_str());
  if (record_.on_tensorboard()) std::printf("TensorBoard %s\n", printable((folder_ / "tb").string()).c_str());
  std::printf("peak memory %s\n", format_bytes(static_cast<double>(memory.peak)).c_str());
  for (const auto& [device, numbers] : bytes) std::printf("%-11s %s\n", device.c_str(), in_words(numbers).c_str());
}

}  // namespace trainer::run
