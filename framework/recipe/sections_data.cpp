#include <recipe/fields.hpp>

namespace trainer::recipe {

const std::vector<Field<Data>>& data_fields() {
  static const std::vector<Field<Data>> fields = {
      field(&Data::folder, {.key = "folder",
                            .type = kPath,
                            .required = true,
                            .help = "Folder with pictures (jpeg, png, webp, avif, heic, tiff).",
                            .must_exist = true}),
      field(&Data::metadata,
            {.key = "metadata",
             .type = kPath,
             .fallback_text = "metadata.jsonl or metadata.csv in folder, if there",
             .help = "A .jsonl or .csv file that names pictures and captions; only the pictures it names are used.",
             .must_exist = true}),
      field(&Data::captions, {.key = "captions",
                              .type = kString | kStringList,
                              .min_items = 1,
                              .help = "Extensions of the caption files beside the pictures; the first found is used."}),
      field(&Data::caption,
            {.key = "caption", .help = "One caption for all pictures of the folder; caption files are then not read."}),
      field(&Data::trigger, {.key = "trigger", .help = "Words put before every caption."}),
      field(&Data::repeats, {.key = "repeats",
                             .min = 1,
                             .max = 1'000'000,
                             .help = "How often a picture of this folder occurs in an epoch."}),
      field(&Data::resolution, {.key = "resolution",
                                .type = kInt | kIntList,
                                .min = 16,
                                .max = 16384,
                                .multiple_of = 16,
                                .min_items = 1,
                                .max_items = 2,
                                .unit = "pixels",
                                .help = "One number: aspect-ratio buckets around the area of a square of this side. "
                                        "[width, height]: every picture is scaled and cropped to exactly this size."}),
      field(&Data::crop, {.key = "crop", .choices = {"center"}, .help = "Which part of a picture is kept."}),
      field(&Data::max_aspect,
            {.key = "max_aspect",
             .min = 1,
             .max = 16,
             .help = "Longer over shorter side of the widest bucket; beyond it pictures are cropped."}),
      field(&Data::upscale, {.key = "upscale",
                             .help = "Enlarge pictures that are smaller than their bucket; false leaves them out and "
                                     "says so."}),
      field(&Data::recursive, {.key = "recursive", .help = "Also read the folders below."}),
      field(&Data::validation, {.key = "validation",
                                .help = "Hold the whole source out from training, for [validation]; `repeats` then "
                                        "has no meaning."}),
  };
  return fields;
}

}  // namespace trainer::recipe
