#include <recipe/fields.hpp>

namespace trainer::recipe {

const std::vector<SectionSchema>& sections() {
  static const std::vector<SectionSchema> all = {
      {.name = "run",
       .summary = "What the run is called, where it goes and how long it is.",
       .options = specs_of(run_fields())},
      {.name = "model",
       .summary = "The model that is trained.",
       .component = "model",
       .options = specs_of(model_fields())},
      {.name = "text_encoder",
       .summary = "Turns captions into the model's conditioning; runs once, before training.",
       .component = "text_encoder",
       .options = specs_of(text_encoder_fields())},
      {.name = "autoencoder",
       .summary = "Turns pictures into latents before training, and samples back into pictures.",
       .component = "autoencoder",
       .options = specs_of(autoencoder_fields())},
      {.name = "data",
       .summary = "A source of pictures with captions, or of texts where the objective trains on texts; the table may "
                  "be given several times.",
       .repeated = true,
       .options = specs_of(data_fields())},
      {.name = "train", .summary = "Batches, clipping and what is averaged.", .options = specs_of(train_fields())},
      {.name = "adapter",
       .summary = "The small trainable weights beside the frozen model. Without this section all weights are trained; "
                  "`adapter = false` drops one that `extends` brings.",
       .optional = true,
       .component = "adapter",
       .options = specs_of(adapter_fields())},
      {.name = "objective",
       .summary = "What the model is trained to predict.",
       .component = "objective",
       .options = specs_of(objective_fields())},
      {.name = "optimizer", .summary = "The optimizer and its learning rate.", .options = specs_of(optimizer_fields())},
      {.name = "memory",
       .summary = "How the run is made to fit: strategies of your choice, or a budget.",
       .component = "memory",
       .options = specs_of(memory_fields())},
      {.name = "placement",
       .summary = "Which devices hold which part of the model.",
       .component = "placement",
       .options = specs_of(placement_fields())},
      {.name = "sample",
       .summary = "Pictures made from the model during the run.",
       .options = specs_of(sample_fields())},
      {.name = "validation",
       .summary = "The loss on samples that are not trained on, with the same noise and timesteps every time; measured "
                  "when `fraction` or `validation` of a [[data]] table holds samples out. Before the first step and "
                  "after the last one it is always measured; with train.ema it is that of the averaged weights.",
       .options = specs_of(validation_fields())},
      {.name = "checkpoint", .summary = "What is saved when, and kept.", .options = specs_of(checkpoint_fields())},
      {.name = "cache", .summary = "Encoded pictures and captions.", .options = specs_of(cache_fields())},
      {.name = "metrics", .summary = "What is logged.", .options = specs_of(metrics_fields())},
      {.name = "distributed",
       .summary = "Training with several processes; how many there are is for the launcher to say (docs/scaling.md).",
       .options = specs_of(distributed_fields())},
  };
  return all;
}

}  // namespace trainer::recipe
