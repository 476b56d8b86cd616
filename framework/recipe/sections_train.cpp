#include <recipe/fields.hpp>

namespace trainer::recipe {

const std::vector<Field<Train>>& train_fields() {
  static const std::vector<Field<Train>> fields = {
      field(&Train::batch_size, {.key = "batch_size",
                                 .min = 1,
                                 .max = 1'000'000,
                                 .unit = "samples",
                                 .help = "Samples per optimizer step, over all ranks."}),
      field(&Train::micro_batch_size, {.key = "micro_batch_size",
                                       .min = 1,
                                       .max = 1'000'000,
                                       .unit = "samples",
                                       .help = "Samples per forward pass; must divide batch_size. The quotient is "
                                               "accumulated, and pipelined by a split placement."}),
      field(
          &Train::max_grad_norm,
          {.key = "max_grad_norm", .min = 0, .help = "Gradients are scaled down to this global norm; 0: no clipping."}),
      field(&Train::caption_dropout, {.key = "caption_dropout",
                                      .min = 0,
                                      .max = 1,
                                      .help = "Probability that a sample is trained with the empty caption."}),
      field(&Train::ema_decay, {.key = "ema.decay",
                                .min = 0,
                                .max = 0.999999,
                                .help = "Decay of an exponential moving average of the trained weights, which is then "
                                        "sampled and exported; 0: no average."}),
      field(&Train::nonfinite,
            {.key = "nonfinite",
             .choices = {"stop"},
             .help = "What happens when the loss or a gradient is not finite: stop before the weights are touched."}),
      field(&Train::threads, {.key = "threads",
                              .min = 0,
                              .max = 4096,
                              .help = "Processor threads; 0: all cores. Part of a checkpoint, since the thread count "
                                      "can change the last bit of results."}),
      field(
          &Train::matmul,
          {.key = "matmul",
           .choices = {"auto", "mkl", "onednn"},
           .help = "Library for fp32 matrix products on the CPU. auto: oneDNN on processors with AVX-512 that are not "
                   "Intel's, where it is about twice as fast as MKL, elsewhere MKL. They round differently."}),
  };
  return fields;
}

const std::vector<Field<Optimizer>>& optimizer_fields() {
  static const std::vector<Field<Optimizer>> fields = {
      field(&Optimizer::kind, {.key = "kind", .choices = {"adamw"}, .help = "The optimizer."}),
      field(&Optimizer::lr, {.key = "lr", .max = 1000, .above = 0, .help = "Learning rate after the warm-up."}),
      field(&Optimizer::betas, {.key = "betas",
                                .min = 0,
                                .max = 0.9999999,
                                .min_items = 2,
                                .max_items = 2,
                                .help = "Decay of the running means of the gradient and of its square."}),
      field(&Optimizer::eps, {.key = "eps", .above = 0, .help = "Added to the denominator of the update."}),
      field(&Optimizer::weight_decay,
            {.key = "weight_decay", .min = 0, .help = "Decoupled weight decay, multiplied by the learning rate."}),
      field(&Optimizer::schedule, {.key = "schedule.kind",
                                   .choices = {"constant", "linear", "cosine", "cosine_restarts"},
                                   .help = "How the learning rate falls after the warm-up, down to min_factor * lr at "
                                           "the last step."}),
      field(&Optimizer::warmup_steps, {.key = "schedule.warmup_steps",
                                       .min = 0,
                                       .unit = "steps",
                                       .help = "Steps in which the learning rate rises linearly to lr."}),
      field(&Optimizer::min_factor,
            {.key = "schedule.min_factor", .min = 0, .max = 1, .help = "Where the schedule ends, as a factor of lr."}),
      field(&Optimizer::cycles,
            {.key = "schedule.cycles", .min = 1, .max = 1'000'000, .help = "Cycles of cosine_restarts."}),
      field(
          &Optimizer::fused_backward,
          {.key = "fused_backward",
           .help = "Update each parameter as its gradient arrives and free the gradient, so that a full fine-tune "
                   "holds no second copy of the model in gradients. Same result to the bit; needs "
                   "train.max_grad_norm = 0 and a micro_batch_size equal to batch_size. A gradient that is not finite "
                   "stops the run as always, but weights updated before it was seen are lost: going on starts from the "
                   "last checkpoint."}),
  };
  return fields;
}

const std::vector<Field<Sample>>& sample_fields() {
  static const std::vector<Field<Sample>> fields = {
      field(&Sample::prompts, {.key = "prompts", .help = "Texts that are sampled; none: no samples."}),
      field(&Sample::negative_prompt,
            {.key = "negative_prompt", .help = "What to steer away from, for models with classifier-free guidance."}),
      field(&Sample::size, {.key = "size",
                            .min = 16,
                            .max = 16384,
                            .multiple_of = 16,
                            .min_items = 2,
                            .max_items = 2,
                            .unit = "pixels",
                            .help = "Width and height of the samples."}),
      field(&Sample::steps, {.key = "steps", .min = 1, .max = 1000, .unit = "steps", .help = "Sampler steps."}),
      field(&Sample::guidance, {.key = "guidance", .min = 0, .max = 100, .help = "Guidance scale of the samples."}),
      field(&Sample::seeds, {.key = "seeds",
                             .type = kInt | kIntList,
                             .min = 0,
                             .min_items = 1,
                             .help = "Each prompt is sampled once for each seed.",
                             .alias = "seed"}),
      field(&Sample::every,
            {.key = "every", .min = 0, .unit = "steps", .help = "Steps between samples; 0: only before and after."}),
      field(&Sample::before, {.key = "before", .help = "Sample before training, to compare with."}),
      field(&Sample::after, {.key = "after", .help = "Sample after the last step."}),
  };
  return fields;
}

const std::vector<Field<Validation>>& validation_fields() {
  static const std::vector<Field<Validation>> fields = {
      field(&Validation::fraction,
            {.key = "fraction",
             .min = 0,
             .max = 0.9,
             .help = "Share of the samples of [[data]] (without `validation = true`) that is held out from training, "
                     "at least one if not 0. Which ones a hash of their content decides: copies of a picture are on "
                     "one side, and more pictures hardly change the choice."}),
      field(
          &Validation::every,
          {.key = "every", .min = 0, .unit = "steps", .help = "Steps between validations; 0: only before and after."}),
      field(&Validation::timesteps,
            {.key = "timesteps",
             .min = 1,
             .max = 1000,
             .help = "How many timesteps each sample is measured at: the middles of as many equal shares of the "
                     "distribution that objective.timesteps draws from, so that their mean is comparable to the "
                     "training loss. Each is also logged by itself."}),
      field(&Validation::seed, {.key = "seed",
                                .min = 0,
                                .help = "Decides noise and choice, whatever run.seed is: runs with one seed here "
                                        "can be compared."}),
  };
  return fields;
}

}  // namespace trainer::recipe
