// Long random programs over every policy, mostly for the sanitizers: every request ends once, and nothing is left over.
// tests/property checks the decisions themselves, against a linear scan.
#include <map>
#include <random>
#include <set>

#include "dispatch_fixture.h"

namespace arlo::dispatch {
namespace {

constexpr Policy kAll[] = {Policy::kRs,      Policy::kIlb, Policy::kIg,  Policy::kInfaas,
                           Policy::kUniform, Policy::kEft, Policy::kLate};

// Counts the requests in each state by what the actions say.
class Books {
 public:
  void admitted(const Admitted& a, Tag tag) {
    if (a.handle == kNone) return;
    ++admitted_;
    if (a.admission != Admission::kStarted && ended_.count(tag) == 0) waiting_.emplace(tag, a.handle);
  }
  void take(Actions& out) {
    check_batches(out);
    for (const Action& a : out) {
      waiting_.erase(a.tag);
      if (a.kind == ActionKind::kStart) {
        running_[a.tag] = a.handle;
      } else if (a.kind == ActionKind::kLost) {
        running_.erase(a.tag);
        lost_[a.tag] = a.handle;
      } else {
        end(a.tag);
      }
    }
    out.clear();
  }
  // The rows of a batch come one after the other, on one instance and runtime.
  static void check_batches(const Actions& out) {
    std::set<BatchId> seen;
    for (std::size_t i = 0; i < out.size();) {
      const Action& first = out[i];
      std::size_t next = i + 1;
      if (first.kind == ActionKind::kStart && first.batch != kNone) {
        ASSERT_TRUE(seen.insert(first.batch).second);
        while (next < out.size() && out[next].kind == ActionKind::kStart && out[next].batch == first.batch) {
          ASSERT_EQ(out[next].instance, first.instance);
          ASSERT_EQ(out[next].runtime, first.runtime);
          ++next;
        }
        ASSERT_GT(next - i, 1);
        ASSERT_LE(next - i, kMostRows);
      }
      i = next;
    }
  }
  static constexpr std::size_t kMostRows = 4;
  void end(Tag tag) { ASSERT_TRUE(ended_.insert({tag, true}).second) << "request " << tag << " ended twice"; }

  std::map<Tag, RequestHandle> waiting_, running_, lost_;
  std::map<Tag, bool> ended_;
  std::size_t admitted_ = 0;
};

class Program {
 public:
  Program(Policy policy, Batching batching, VariantId variants, unsigned seed)
      : random_(seed),
        scheduler_(Options{.policy = policy, .max_queued = 50, .batching = batching}),
        variants_(variants) {
    std::vector<RuntimeId> ladder;
    for (const std::int32_t length : {64, 128, 256, 512}) {
      if (policy == Policy::kUniform && length != 512) continue;
      for (VariantId variant = 0; variant < variants; ++variant) {
        if (variant == 1 && length == 128) continue;  // its levels are others
        ladder.push_back(
            scheduler_.add_runtime({.max_length = length,
                                    .max_batch = length == 256 || batching != Batching::kOne ? 4 : 1,
                                    .capacity = 8,
                                    .dynamic = length == 512,
                                    .latency = {{16, 1, 20}, {length, 1, 20 + length}, {length, 4, 2 * length}},
                                    .variant = variant}));
        ++runtimes_;
      }
    }
    if (batching == Batching::kOne && variants == 1) return;
    scheduler_.add_bundle(ladder);
    ++runtimes_;
    ladder.erase(ladder.begin());
    if (ladder.empty()) return;
    scheduler_.add_bundle(ladder);
    ++runtimes_;
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      now_ += pick(30);
      step();
      books_.take(out_);
      ASSERT_EQ(scheduler_.queued(), static_cast<std::int32_t>(books_.waiting_.size()));
      ASSERT_EQ(scheduler_.in_flight(), static_cast<std::int32_t>(books_.running_.size()));
    }
  }

  // Everything ends; only requests that nobody fits may be left.
  void wind_down() {
    while (!books_.running_.empty() || !books_.lost_.empty()) {
      if (!books_.lost_.empty()) {
        abandon(books_.lost_.begin()->first);
      } else {
        finish(books_.running_.begin()->first);
      }
      books_.take(out_);
    }
    EXPECT_EQ(scheduler_.queued(), scheduler_.parked());
    EXPECT_EQ(books_.ended_.size() + books_.waiting_.size(), books_.admitted_);
  }

 private:
  std::uint32_t pick(std::uint32_t below) { return static_cast<std::uint32_t>(random_()) % below; }

  Tag any(const std::map<Tag, RequestHandle>& from) {
    return std::next(from.begin(), pick(static_cast<std::uint32_t>(from.size())))->first;
  }

  void finish(Tag tag) {
    scheduler_.finish(books_.running_.at(tag), Verdict::kAnswered, now_, out_);
    books_.running_.erase(tag);
    books_.end(tag);
  }

  void abandon(Tag tag) {
    scheduler_.abandon(books_.lost_.at(tag));
    books_.lost_.erase(tag);
    books_.end(tag);
  }

  void retry(std::map<Tag, RequestHandle>& from) {
    if (from.empty()) return;
    const Tag tag = any(from);
    const RequestHandle h = from.at(tag);
    from.erase(tag);
    books_.waiting_[tag] = h;
    scheduler_.retry(h, pick(2) == 0 ? kNone : pick(8), now_, out_, static_cast<std::int32_t>(pick(5)));
  }

  void step() {
    switch (pick(16)) {
      case 0:
        scheduler_.join(pick(runtimes_), 1 + static_cast<std::int32_t>(pick(3)), now_, out_);
        break;
      case 1:
        scheduler_.leave(pick(12), now_, out_);
        break;
      case 2:
        scheduler_.drain(pick(12), now_, out_);
        break;
      case 3:
        scheduler_.expire(now_, out_);
        break;
      case 4:
        if (!books_.waiting_.empty()) {
          const Tag tag = any(books_.waiting_);
          ASSERT_TRUE(scheduler_.cancel(books_.waiting_.at(tag), tag, now_, out_));
          books_.waiting_.erase(tag);
          books_.end(tag);
        }
        break;
      case 5:
        retry(books_.running_);
        break;
      case 6:
        retry(books_.lost_);
        break;
      case 7:
      case 8:
      case 9:
      case 10:
        if (!books_.running_.empty()) finish(any(books_.running_));
        break;
      case 11: {
        scheduler_.hold();
        for (std::uint32_t rows = pick(6); rows > 0; --rows) arrive();
        scheduler_.release(now_, out_);
        break;
      }
      default:
        arrive();
    }
  }

  void arrive() {
    const Arrival arrival{.length = static_cast<std::int32_t>(1 + pick(512)),
                          .due = pick(3) == 0 ? now_ + TimeNs{pick(1500)} : kNever,
                          .deadline = pick(2) == 0 ? now_ + 1 + TimeNs{pick(3000)} : kNever,
                          .client = pick(5),
                          .variant = static_cast<VariantId>(pick(variants_))};
    books_.admitted(scheduler_.arrive(tags_, arrival, now_, out_), tags_);
    ++tags_;
  }

  std::mt19937 random_;
  Scheduler scheduler_;
  Books books_;
  Actions out_;
  TimeNs now_ = 0;
  Tag tags_ = 0;
  std::uint32_t runtimes_ = 0;  // and bundles
  VariantId variants_;
};

class EveryPolicy : public ::testing::TestWithParam<Policy> {};

TEST_P(EveryPolicy, EveryRequestEndsOnce) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const Batching batching : {Batching::kOne, Batching::kFill, Batching::kDeadline}) {
      Program program(GetParam(), batching, seed % 2 == 0 ? 1 : 3, seed);
      program.run(2000);
      program.wind_down();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dispatch, EveryPolicy, ::testing::ValuesIn(kAll),
                         [](const auto& test) { return std::string(policy_name(test.param)); });

}  // namespace
}  // namespace arlo::dispatch
