// A request's question to a tokenizer in a separate process, and its result. A request is read until it needs tokens,
// and again when they are there.
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

// The result.
struct Tokens {
  MaybeFault fault;
  std::vector<Encoding> made;
  std::vector<std::vector<std::string>> words;      // what they are written as, where that was asked for
  std::vector<std::vector<std::uint8_t>> specials;  // special tokens in these
  std::vector<std::string> decoded;
  Ids before, behind;  // special tokens around a single text
};

struct Job : Tokens {
  std::shared_ptr<const Elsewhere> tokenizer;  // null: nothing is requested yet
  bool done = false;
  bool dropped = false;  // its client has gone

  // The question: tokens of texts, or of pairs where there are `seconds`; or the texts of ids.
  std::vector<std::string> texts;
  std::vector<std::string> seconds;
  Limits limits;
  bool written = false;  // what they are written as, and their places
  std::vector<Ids> ids;
  bool skip_special = false;

  // The same texts in another vocabulary.
  std::shared_ptr<Job> next;
  [[nodiscard]] Job* another() {
    if (next == nullptr) next = std::make_shared<Job>();
    return next.get();
  }

  [[nodiscard]] bool wanted() const { return tokenizer != nullptr && !done; }
};

// Returns the first of a request's jobs that is wanted; null: none is.
inline std::shared_ptr<Job> wanted_of(std::shared_ptr<Job> job) {
  while (job != nullptr && !job->wanted()) job = job->next;
  return job;
}

// Drops a request's jobs when its client has gone.
inline void drop(const std::shared_ptr<Job>& first) {
  for (Job* job = first.get(); job != nullptr; job = job->next.get()) job->dropped = true;
}

}  // namespace arlo::text
