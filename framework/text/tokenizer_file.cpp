#include <nlohmann/json.hpp>
#include <text/tokenizer_file.hpp>
#include <text/utf8.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <optional>

namespace trainer::text {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 32;
// Values outside vocab and merges. The 1000 added tokens of Mistral take 8000.
constexpr std::size_t kMaxTreeValues = 2'000'000;

/// Receives the parser's events: builds a tree, but sends `model.vocab` and `model.merges` to their tables.
class Handler final : public Json::json_sax_t {
 public:
  Handler(std::string_view content, const std::string& name) : content_(content), name_(name) {
    // No decoded string is longer than its source, so views into the arena stay valid.
    arena_->reserve(content.size());
    file_.vocabulary.reserve(std::min<std::size_t>(content.size() / 50, kMaxVocabulary));
  }

  TokenizerFile take() {
    file_.root = root_;
    file_.arena = arena_;
    return std::move(file_);
  }

  bool null() override { return value(nullptr); }
  bool boolean(bool flag) override { return value(flag); }
  bool number_integer(number_integer_t number) override {
    if (mode_ == Mode::vocabulary)
      fail("TOK_FIELD", "model.vocab: the id of " + in_quotes(key_) + " is negative: " + std::to_string(number));
    return value(number);
  }
  bool number_unsigned(number_unsigned_t number) override {
    return mode_ == Mode::vocabulary ? token(number) : value(number);
  }
  bool number_float(number_float_t number, const string_t& /*source*/) override { return value(number); }
  bool string(string_t& text) override { return mode_ == Mode::merges ? merge_text(text) : value(text); }
  bool binary(binary_t& /*bytes*/) override { return false; }  // JSON text has none

  bool key(string_t& name) override {
    key_ = name;
    if (mode_ == Mode::tree && nodes_.back()->contains(name))
      fail("TOK_DUPLICATE", "key " + in_quotes(path(name)) + " appears twice");
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    descend();
    if (mode_ != Mode::tree) wrong_kind("an object");
    if (in_model("merges")) wrong_table();
    if (in_model("vocab")) {
      attach(nullptr);
      mode_ = Mode::vocabulary;
    } else {
      nodes_.push_back(attach(Json::object()));
      keys_.push_back(key_);
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    if (mode_ == Mode::vocabulary)
      mode_ = Mode::tree;
    else
      ascend();
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    descend();
    if (mode_ == Mode::merges && !in_pair_) {
      in_pair_ = true;
      pair_.clear();
    } else if (mode_ != Mode::tree) {
      wrong_kind("an array");
    } else if (in_model("vocab")) {
      wrong_table();
    } else if (in_model("merges")) {
      attach(nullptr);
      mode_ = Mode::merges;
    } else {
      nodes_.push_back(attach(Json::array()));
      keys_.push_back(key_);
    }
    return true;
  }

  bool end_array() override {
    --depth_;
    if (mode_ == Mode::merges && in_pair_) {
      in_pair_ = false;
      if (pair_.size() != 2) bad_merge();
      add_merge(pair_[0], pair_[1]);
    } else if (mode_ == Mode::merges) {
      mode_ = Mode::tree;
    } else {
      ascend();
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/, const Json::exception& error) override {
    const std::string_view before = content_.substr(0, position > 0 ? position - 1 : 0);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
    std::string why = error.what();
    if (const std::size_t colon = why.find(": "); colon != std::string::npos) why.erase(0, colon + 2);
    throw Error(ExitCode::bad_input,
                name_ + ":" + std::to_string(line) + ":" + std::to_string(column) + ": not valid JSON: " + why +
                    "; download the file again",
                "TOK_JSON");
  }

 private:
  enum class Mode { tree, vocabulary, merges };

  [[noreturn]] void fail(const char* code, const std::string& what) const {
    throw Error(ExitCode::bad_input, name_ + ": " + what, code);
  }

  [[noreturn]] void wrong_kind(const char* what) const {
    if (mode_ == Mode::merges) bad_merge();
    fail("TOK_FIELD", "model.vocab: " + in_quotes(key_) + " has " + what + " where its id (a whole number) belongs");
  }

  [[noreturn]] void wrong_table() const {
    fail("TOK_FIELD", key_ == "vocab"
                          ? "model.vocab must be an object of tokens and ids; only byte-level BPE can be used"
                          : "model.merges must be a list");
  }

  [[noreturn]] void bad_merge() const {
    fail("TOK_FIELD", "model.merges[" + std::to_string(file_.merges.size()) +
                          "]: a merge is \"left right\" or [\"left\", \"right\"]");
  }

  /// Dotted path of the value that comes next.
  [[nodiscard]] std::string path(const std::string& last) const {
    std::string joined;
    for (std::size_t i = 1; i < keys_.size(); ++i) joined += keys_[i] + ".";  // keys_[0] is the root's, empty
    return joined + last;
  }

  [[nodiscard]] bool in_model(std::string_view name) const {
    return keys_.size() == 2 && keys_[1] == "model" && nodes_[1]->is_object() && key_ == name;
  }

  void descend() {
    if (++depth_ > kMaxDepth) fail("TOK_LIMIT", "nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }

  void ascend() {
    key_ = keys_.back();
    keys_.pop_back();
    nodes_.pop_back();
  }

  Json* attach(Json node) {
    if (++values_ > kMaxTreeValues)
      fail("TOK_LIMIT", "more than " + std::to_string(kMaxTreeValues) + " values outside vocab and merges");
    if (nodes_.empty()) {
      *root_ = std::move(node);
      return root_.get();
    }
    Json& parent = *nodes_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(node));
      return &parent.back();
    }
    return &(parent[key_] = std::move(node));
  }

  bool value(Json node) {
    if (mode_ != Mode::tree) wrong_kind("another value");
    if (in_model("vocab") || in_model("merges")) wrong_table();
    attach(std::move(node));
    return true;
  }

  std::string_view keep(std::string_view text) {
    const std::size_t start = arena_->size();
    arena_->append(text);
    return std::string_view(*arena_).substr(start);
  }

  bool token(uint64_t id) {
    if (id >= kMaxVocabulary)
      fail("TOK_LIMIT", "model.vocab: id " + std::to_string(id) + " of " + in_quotes(key_) +
                            " is out of range, at most " + std::to_string(kMaxVocabulary - 1));
    switch (file_.vocabulary.add(keep(key_), static_cast<int32_t>(id))) {
      case Vocabulary::Added::yes:
        return true;
      case Vocabulary::Added::duplicate_token:
        fail("TOK_DUPLICATE", "model.vocab: token " + in_quotes(key_) + " appears twice");
      case Vocabulary::Added::duplicate_id:
        fail("TOK_DUPLICATE", "model.vocab: id " + std::to_string(id) + " is given to both " +
                                  in_quotes(*file_.vocabulary.token(static_cast<int64_t>(id))) + " and " +
                                  in_quotes(key_));
    }
    return true;
  }

  bool merge_text(const std::string& text) {
    if (in_pair_) {
      if (pair_.size() == 2) bad_merge();
      pair_.push_back(keep(text));
      return true;
    }
    if (text.starts_with("#version")) return true;  // the header line of merges.txt, copied by old converters
    const std::string_view kept = keep(text);
    const std::size_t space = kept.find(' ');
    if (space == std::string_view::npos || kept.find(' ', space + 1) != std::string_view::npos) bad_merge();
    add_merge(kept.substr(0, space), kept.substr(space + 1));
    return true;
  }

  void add_merge(std::string_view left, std::string_view right) {
    if (left.empty() || right.empty()) bad_merge();
    if (file_.merges.size() == kMaxMerges)
      fail("TOK_LIMIT", "model.merges: more than " + std::to_string(kMaxMerges) + " entries");
    file_.merges.emplace_back(left, right);
  }

  std::string_view content_;
  const std::string& name_;
  TokenizerFile file_;
  std::shared_ptr<Json> root_ = std::make_shared<Json>();
  std::shared_ptr<std::string> arena_ = std::make_shared<std::string>();
  std::vector<Json*> nodes_;       ///< open objects and arrays of the tree; std::map nodes and the last array element,
                                   ///< whose addresses do not change while they are open
  std::vector<std::string> keys_;  ///< key under which each of them stands
  std::string key_;
  std::size_t depth_ = 0;
  std::size_t values_ = 0;
  Mode mode_ = Mode::tree;
  bool in_pair_ = false;
  std::vector<std::string_view> pair_;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view content, const std::string& name) {
  if (content.size() > kMaxTokenizerBytes)
    throw Error(ExitCode::bad_input, name + ": larger than 64 MiB; this is no tokenizer.json", "TOK_LIMIT");
  Handler handler(content, name);
  Json::sax_parse(content.begin(), content.end(), &handler);
  TokenizerFile file = handler.take();
  if (!file.root->is_object())
    throw Error(ExitCode::bad_input, name + ": the file must hold one JSON object", "TOK_FIELD");
  return file;
}

}  // namespace trainer::text
