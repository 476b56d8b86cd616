#include "fixture.hpp"

#include <recipe/default_options.hpp>

namespace trainer::recipe {
namespace {

const std::string kHead = "name = \"x\"\nkind = \"memory\"\nsummary = \"s\"\n";

std::string manifest_message(const std::string& text) {
  try {
    parse_component_schema(text, "x.plugin.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::plugin_rejected);
    return error.what();
  }
  return "no error";
}

TEST(Manifest, ReadsOptions) {
  const ComponentSchema schema = parse_component_schema(
      "manifest = 1\nversion = \"1\"\n" + kHead +
          "[[option]]\nkey = \"a.b\"\ntype = \"integer|strings\"\ndefault = 32\nmin = 16\n"
          "max = 64\nmultiple_of = 16\nmin_items = 1\nmax_items = 3\nunit = \"pixels\"\nhelp = \"h\"\nalias = \"c\"\n"
          "[[option]]\nkey = \"d\"\ntype = \"path\"\nmust_exist = true\nhelp = \"h\"\n"
          "[[option]]\nkey = \"e\"\ntype = \"number\"\nsame_as = \"a.b\"\nabove = 0\nhelp = \"h\"\n",
      "x.plugin.toml");
  EXPECT_EQ(schema.name, "x");
  EXPECT_EQ(schema.kind, "memory");
  EXPECT_EQ(schema.summary, "s");
  ASSERT_EQ(schema.options.size(), 3U);
  const OptionSpec& first = schema.options[0];
  EXPECT_EQ(first.key, "a.b");
  EXPECT_EQ(first.type, unsigned{kInt | kStringList});
  EXPECT_EQ(*first.fallback.get_if<int64_t>(), 32);
  EXPECT_EQ(first.min, 16.0);
  EXPECT_EQ(first.max, 64.0);
  EXPECT_EQ(first.multiple_of, 16);
  EXPECT_EQ(first.min_items, 1U);
  EXPECT_EQ(first.max_items, 3U);
  EXPECT_EQ(first.unit, "pixels");
  EXPECT_EQ(first.alias, "c");
  EXPECT_TRUE(schema.options[1].must_exist);
  EXPECT_EQ(*schema.options[1].fallback.get_if<std::string>(), "");
  EXPECT_EQ(schema.options[2].same_as, "a.b");
  EXPECT_EQ(schema.options[2].above, 0.0);
}

TEST(Manifest, TensorsOfAnAdaptersFiles) {
  const std::string head = "name = \"x\"\nkind = \"adapter\"\nsummary = \"s\"\n";
  const std::string option =
      "[[option]]\nkey = \"rank\"\ntype = \"integer\"\ndefault = 32\nin_file = true\nhelp = \"h\"\n";
  const ComponentSchema schema =
      parse_component_schema(head + "tensors = [\"lora_A.weight\", \"m\"]\n" + option, "x.plugin.toml");
  EXPECT_EQ(schema.tensors, (std::vector<std::string>{"lora_A.weight", "m"}));
  EXPECT_TRUE(schema.options.at(0).in_file);
  EXPECT_EQ(default_options(schema).get<int64_t>("rank"), 32);
  EXPECT_FALSE(default_options(schema, /*from_file=*/true).has("rank"));
  EXPECT_EQ(manifest_message(head + "tensors = [\".m\"]\n"),
            "x.plugin.toml:4:11: tensors: \".m\" is not the end of a name; write \"lora_A.weight\" for the tensors "
            "\"LAYER.lora_A.weight\"");
  EXPECT_EQ(manifest_message(head + "tensors = 3\n"),
            "x.plugin.toml:4:11: tensors: expected a list of strings, found 3");
  EXPECT_EQ(manifest_message(kHead + "tensors = [\"m\"]\n"),
            "x.plugin.toml:4:11: tensors: only adapters write files of their own, this is \"memory\"");
  EXPECT_EQ(manifest_message(kHead + option),
            "x.plugin.toml:8:11: option \"rank\": only an adapter's options can stand in a file");
}

TEST(Manifest, ReportsAllMistakes) {
  EXPECT_EQ(manifest_message("name = \"A b\"\nkind = \"modle\"\n"),
            "x.plugin.toml:1:1: missing key \"summary\"\nx.plugin.toml:1:8: name: only a-z, 0-9 and _ are allowed\n"
            "x.plugin.toml:2:8: kind: unknown component kind \"modle\" (did you mean \"model\"?); valid: model, "
            "text_encoder, "
            "autoencoder, adapter, objective, memory, placement");
  EXPECT_EQ(manifest_message("name = \"\"\nkind = \"memory\"\nsummary = \"s\"\n"),
            "x.plugin.toml:1:8: name: must not be empty");
  EXPECT_EQ(manifest_message("name = \n"),
            "x.plugin.toml:1:8: not valid TOML: Error while parsing key-value pair: expected value, saw '\\n'"
            "\n  name =");
  EXPECT_EQ(manifest_message(kHead + "option = 3\n"),
            "x.plugin.toml:4:10: option: expected a list of tables ([[option]]), found 3");
}

/// One option after kHead (lines 4 to ...), and the message.
struct Case {
  const char* option;
  const char* message;
};

TEST(Manifest, ReportsMistakesOfOptions) {
  const Case cases[] = {
      {"type = \"boolean\"\ndefault = true\nhelp = \"h\"\n",
       "x.plugin.toml:4:1: missing key \"option.key\": the name of the option"},
      {"key = \"k\"\ntype = \"int\"\ndefault = 1\nhelp = \"h\"\n",
       "x.plugin.toml:6:8: type: unknown value type \"int\" (did you mean \"integer\" or \"integers\"?); valid: "
       "boolean, "
       "integer, number, "
       "string, path, bytes, integers, numbers, strings"},
      {"key = \"k\"\ntype = \"integer\"\ndefault = 1.5\nhelp = \"h\"\n",
       "x.plugin.toml:7:11: default of \"k\": expected an integer, found 1.5"},
      {"key = \"k\"\ntype = \"integer\"\ndefault = 1\nmin = 2\nhelp = \"h\"\n",
       "x.plugin.toml:7:11: default of \"k\": 1 is out of range, expected at least 2"},
      {"key = \"k\"\ntype = \"integer\"\nhelp = \"h\"\n",
       "x.plugin.toml:4:1: option \"k\": needs default, default_text, same_as or required"},
      {"key = \"k\"\ntype = \"number\"\nsame_as = \"z\"\nhelp = \"h\"\n",
       "x.plugin.toml:4:1: same_as of \"k\" names no option"},
      {"key = \"K.a\"\ntype = \"boolean\"\ndefault = true\nhelp = \"h\"\n",
       "x.plugin.toml:5:7: option \"K.a\": only a-z, 0-9, _ and . between names are allowed"},
      {"key = \"k\"\ntype = \"boolean\"\ndefault = true\nhelp = \"h\"\nhlep = 1\n",
       "x.plugin.toml:9:1: unknown key \"option.hlep\" (did you mean \"option.help\"?)"},
      {"key = \"k\"\ntype = \"boolean\"\ndefault = true\nhelp = \"h\"\n[[option]]\nkey = \"k\"\ntype = "
       "\"boolean\"\ndefault "
       "= true\nhelp = \"h\"\n",
       "x.plugin.toml:10:7: option \"k\": declared twice"},
      {"key = \"k\"\ntype = \"boolean\"\ndefault = true\nhelp = \"h\"\n[[option]]\nkey = \"k.l\"\ntype = "
       "\"boolean\"\ndefault = true\nhelp = \"h\"\n",
       "x.plugin.toml:10:7: option \"k.l\": \"k\" makes it both a table and a value"},
      {"key = \"k.l\"\ntype = \"boolean\"\ndefault = true\nhelp = \"h\"\n[[option]]\nkey = \"k\"\ntype = "
       "\"boolean\"\ndefault = true\nhelp = \"h\"\n",
       "x.plugin.toml:10:7: option \"k\": \"k.l\" makes it both a table and a value"},
      {"key = \"k\"\ntype = \"integer\"\nrequired = true\nhelp = \"h\"\n", "no error"},
  };
  for (const Case& one : cases) EXPECT_EQ(manifest_message(kHead + "[[option]]\n" + one.option), one.message);
}

const std::string kOptions =
    "[[option]]\nkey = \"save\"\ntype = \"strings\"\ndefault = [\"a\"]\nhelp = \"h\"\n"
    "[[option]]\nkey = \"deep.on\"\ntype = \"boolean\"\ndefault = true\nhelp = \"h\"\n";

TEST(Manifest, ReadsCandidates) {
  const ComponentSchema schema = parse_component_schema(
      kHead + kOptions + "[[candidate]]\n[[candidate]]\nsave = [\"b\"]\n[[candidate]]\ndeep.on = false\n",
      "x.plugin.toml");
  ASSERT_EQ(schema.candidates.size(), 3U);
  EXPECT_EQ(schema.candidates[0].text, "");
  EXPECT_EQ(schema.candidates[1].text, "save = [\"b\"]");
  EXPECT_TRUE(*schema.candidates[1].options.find("deep.on")->second.get_if<bool>()) << "defaults are filled in";
  EXPECT_FALSE(*schema.candidates[2].options.find("deep.on")->second.get_if<bool>());
  EXPECT_EQ(schema.candidates[2].text, "deep.on = false");
  EXPECT_EQ(schema.tolerance.rounding, 0);
  EXPECT_EQ(schema.tolerance.dense, 0.1);
  const ComponentSchema loose = parse_component_schema(kHead + kOptions + "[tolerance]\nrounding = 1e-2\n", "x");
  EXPECT_EQ(loose.tolerance.rounding, 1e-2);
  EXPECT_EQ(loose.tolerance.dense, 0.1);
}

TEST(Manifest, ReportsMistakesOfCandidates) {
  const auto message = [](const std::string& text) { return manifest_message(kHead + kOptions + text); };
  EXPECT_EQ(manifest_message(kHead + "candidate = 3\n" + kOptions),
            "x.plugin.toml:4:13: candidate: expected a list of tables ([[candidate]]), found 3");
  EXPECT_EQ(manifest_message(kHead + "candidate = [3]\n" + kOptions),
            "x.plugin.toml:4:14: candidate: expected a table, found 3");
  EXPECT_EQ(message("[[candidate]]\nsaev = [\"b\"]\n"),
            "x.plugin.toml:15:1: unknown key \"candidate.saev\" (did you mean \"candidate.save\"?)");
  EXPECT_EQ(message("[[candidate]]\nsave = 3\n"),
            "x.plugin.toml:15:8: candidate.save: expected a list of strings, found 3");
  EXPECT_EQ(message("[[candidate]]\n[[candidate]]\nsave = [\"a\"]\n"), "x.plugin.toml:15:1: candidate: given twice");
  std::string model = kHead;
  model.replace(model.find("memory"), 6, "model");
  EXPECT_EQ(message("[tolerance]\nrounding = 0.2\ndense = 0\n"),
            "x.plugin.toml:15:12: tolerance.rounding: 0.2 is out of range, expected 0 to 0.05\n"
            "x.plugin.toml:16:9: tolerance.dense: 0 is out of range, expected above 0, at most 0.5");
  EXPECT_EQ(manifest_message(model + "[tolerance]\n"),
            "x.plugin.toml:4:1: tolerance: only memory strategies that pack weights have one, this is \"model\"");
  EXPECT_EQ(manifest_message(model + "[[candidate]]\n"),
            "x.plugin.toml:4:1: candidate: the planner chooses memory strategies only, this is \"model\"");
}

TEST(Manifest, KeysOfTheFrameworkAreNotForPlugins) {
  EXPECT_EQ(
      manifest_message("name = \"x\"\nkind = \"model\"\nsummary = \"s\"\n[[option]]\nkey = \"dtype\"\ntype = "
                       "\"string\"\nhelp = \"h\"\n"),
      "x.plugin.toml:5:7: option \"dtype\": the framework reads this key of [model]; a plugin does not declare it");
}

}  // namespace
}  // namespace trainer::recipe
