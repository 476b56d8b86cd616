#include <recipe/fields.hpp>

namespace trainer::recipe {

const std::vector<Field<Run>>& run_fields() {
  static const std::vector<Field<Run>> fields = {
      field(&Run::name, {.key = "name",
                         .fallback_text = "the recipe's file name",
                         .help = "Names the outputs, for example lora/NAME-250.safetensors."}),
      field(&Run::output,
            {.key = "output",
             .type = kPath,
             .fallback_text = "runs/NAME, with the name of run.name",
             .help = "Folder of the run. A relative path is relative to the folder the program is started "
                     "in, not to the recipe.",
             .from_working_folder = true}),
      field(&Run::seed, {.key = "seed",
                         .min = 0,
                         .help = "Every random number of the run is a function of it: equal seeds give equal runs."}),
      field(&Run::steps, {.key = "steps", .min = 1, .max = 1'000'000'000, .unit = "steps", .help = "Optimizer steps."}),
  };
  return fields;
}

const std::vector<Field<Checkpoint>>& checkpoint_fields() {
  static const std::vector<Field<Checkpoint>> fields = {
      field(&Checkpoint::every,
            {.key = "every",
             .min = 0,
             .unit = "steps",
             .help = "Steps between checkpoints (exact resume) and exports; 0: only at the end. The "
                     "last step is always saved."}),
      field(
          &Checkpoint::keep,
          {.key = "keep",
           .min = 0,
           .help = "How many of the newest checkpoints stay on disk; 0: all. One in whose folder you put a file named "
                   "KEEP stays besides."}),
      field(&Checkpoint::keep_every,
            {.key = "keep_every",
             .min = 0,
             .unit = "steps",
             .help = "Steps between checkpoints that stay for good besides the newest, a multiple of checkpoint.every; "
                     "0: none."}),
      field(
          &Checkpoint::final_save_wait,
          {.key = "final_save_wait",
           .min = 0,
           .max = 86400,
           .unit = "seconds",
           .help = "How long the save after the last step, or after a signal, waits for room on a full disk before the "
                   "run gives up. A save on the way does not wait: training goes on."}),
      field(&Checkpoint::fallback,
            {.key = "fallback",
             .type = kPath,
             .fallback_text = "none",
             .help = "Folder, best on another disk, for the checkpoints that run.output takes no more because it is "
                     "full or fails. The run goes on from there like from its own folder.",
             .from_working_folder = true}),
      field(&Checkpoint::reserve,
            {.key = "reserve",
             .help = "Keep room on the disk for the last save (reserve.bin in run.output, twice the size of a "
                     "checkpoint's tensors); it is used when the disk is full at the end."}),
  };
  return fields;
}

const std::vector<Field<Cache>>& cache_fields() {
  static const std::vector<Field<Cache>> fields = {
      field(&Cache::folder, {.key = "folder",
                             .type = kPath,
                             .fallback_text = "the folder \"cache\" in run.output",
                             .help = "Folder of encoded pictures and captions. Its entries are keyed by content and by "
                                     "everything that made them, so several runs may share it."}),
  };
  return fields;
}

const std::vector<Field<Metrics>>& metrics_fields() {
  static const std::vector<Field<Metrics>> fields = {
      field(&Metrics::every, {.key = "every", .min = 1, .unit = "steps", .help = "Steps between rows of log.jsonl."}),
      field(&Metrics::tensorboard, {.key = "tensorboard", .help = "Also write TensorBoard event files."}),
      field(&Metrics::smoothing, {.key = "smoothing",
                                  .min = 0,
                                  .max = 0.9999,
                                  .help = "Weight of the past in the smoothed loss; 0 shows the loss as it is."}),
  };
  return fields;
}

const std::vector<Field<Distributed>>& distributed_fields() {
  static const std::vector<Field<Distributed>> fields = {
      field(&Distributed::timeout,
            {.key = "timeout",
             .min = 5,
             .max = 86400,
             .unit = "seconds",
             .help = "How long a process that others wait for may get nothing done before they give up and name it."}),
  };
  return fields;
}

}  // namespace trainer::recipe
