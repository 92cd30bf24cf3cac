// What a request asks of a tokenizer that runs in a process of its own, and what came of it. A request is read until it
// needs tokens, and again when they are there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fault.h"
#include "text/tokenizer.h"

namespace arlo::text {

// A tokenizer.json, as the helpers know it.
struct Elsewhere {
  std::uint64_t id = 0;  // never given again
  std::string json;
};

// What came of it.
struct Tokens {
  MaybeFault fault;
  std::vector<Encoding> made;
  std::vector<std::vector<std::string>> words;      // what they are written as, where that was asked for
  std::vector<std::vector<std::uint8_t>> specials;  // beside these
  std::vector<std::string> decoded;
  Ids before, behind;  // special tokens that a single text stands in
};

struct Job : Tokens {
  std::shared_ptr<const Elsewhere> tokenizer;  // null: nothing is asked for yet
  bool done = false;
  bool dropped = false;  // nobody waits for it any more

  // What is asked for: tokens of texts, or of pairs where there are `seconds`; or the texts of ids.
  std::vector<std::string> texts;
  std::vector<std::string> seconds;
  Limits limits;
  bool written = false;
  std::vector<Ids> ids;
  bool skip_special = false;

  [[nodiscard]] bool wanted() const { return tokenizer != nullptr && !done; }
};

}  // namespace arlo::text
