#include "simulate/tokens.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <list>
#include <numbers>

#include "solve/tokens/plan.h"

namespace arlo::simulate::tokens {
namespace {

using solve::tokens::Query;
using solve::tokens::Waiting;

// SplitMix64's finaliser; the top 53 bits as a number in [0, 1).
double Draw(std::uint64_t seed, std::uint64_t what) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + what + 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

constexpr double kNsPerSecond = 1e9;
constexpr std::size_t kCuts = 4;  // ways to leave out urgent rows, none among them

class Server {
 public:
  Server(const Options& options, std::span<const TimeNs> arrived, std::span<const std::uint32_t> kind)
      : o_(options),
        arrived_(arrived),
        kind_(kind),
        counts_(options.latency.size()),
        queue_(options.alike),
        recent_(options.kinds.size()),
        idle_(static_cast<std::size_t>(options.workers), 0),
        last_(idle_.size(), counts_) {
    found_.outcomes.resize(o_.kinds.size());
    found_.rows.resize(counts_);
    found_.batches.resize(counts_);
    for (const LatencyTable& table : o_.latency) {
      const auto most = static_cast<std::int64_t>(o_.alike.most);
      per_row_.push_back(static_cast<double>(table.at(1, most)) / kNsPerSecond / static_cast<double>(most));
    }
  }

  Result run() {
    TimeNs now = 0;
    while (true) {
      const auto worker = std::min_element(idle_.begin(), idle_.end());
      now = std::max(now, *worker);
      arrive(now);
      evict(now);
      if (queue_.batches().empty()) {
        if (next_ == arrived_.size()) break;
        now = std::max(now, arrived_[next_]);
        continue;
      }
      if (const TimeNs took = serve(now, static_cast<std::size_t>(worker - idle_.begin())); took > 0) {
        *worker = now + took;
      } else if (took < 0) {  // nothing that is worth it: until something changes
        TimeNs wake = next_ < arrived_.size() ? arrived_[next_] : kNever;
        for (const Waiting& batch : queue_.batches()) wake = std::min(wake, batch.deadline - quickest());
        now = std::max(now + 1, wake);
      }
    }
    return std::move(found_);
  }

 private:
  TimeNs quickest() const {
    TimeNs least = kNever;
    for (const LatencyTable& table : o_.latency) least = std::min(least, table.at(1, 1));
    return least;
  }

  void arrive(TimeNs now) {
    for (; next_ < arrived_.size() && arrived_[next_] <= now; ++next_) {
      const Kind& kind = o_.kinds[kind_[next_]];
      queue_.add({next_, arrived_[next_], arrived_[next_] + kind.slo, kind.utility, kind_[next_]});
      ++recent_[kind_[next_]];
      if (arrived_[next_] >= o_.warmup) found_.offered += kind.utility;
    }
    for (; oldest_ < next_ && arrived_[oldest_] + o_.window < now; ++oldest_) --recent_[kind_[oldest_]];
  }

  double rate(TimeNs now, std::size_t kind) const {
    return static_cast<double>(recent_[kind]) * kNsPerSecond /
           static_cast<double>(std::clamp<TimeNs>(now, 1, o_.window));
  }

  void tally(const Query& query, int type) {
    if (query.arrived < o_.warmup) return;
    ++found_.outcomes[query.kind][static_cast<std::size_t>(type)];
    if (type == 0) found_.utility += query.utility;
  }

  // Removes rows whose deadline is not after `end`; they leave evicted. Whether any did.
  bool drop(Waiting& batch, TimeNs end) {
    const std::size_t before = batch.rows.size();
    std::erase_if(batch.rows, [&](const Query& row) {
      if (end < row.deadline) return false;
      tally(row, 3);
      return true;
    });
    if (batch.rows.size() == before) return false;
    batch.deadline = kNever;
    for (const Query& row : batch.rows) batch.deadline = std::min(batch.deadline, row.deadline);
    return true;
  }

  void evict(TimeNs now) {
    const TimeNs end = now + quickest();
    for (auto batch = queue_.batches().begin(); batch != queue_.batches().end();) {
      if (batch->deadline <= end) drop(*batch, end);
      batch = batch->rows.empty() ? queue_.batches().erase(batch) : std::next(batch);
    }
  }

  // The batches to look at, most urgent first.
  void look() {
    order_.clear();
    for (auto batch = queue_.batches().begin(); batch != queue_.batches().end(); ++batch) order_.push_back(batch);
    std::stable_sort(order_.begin(), order_.end(), [](auto a, auto b) { return a->deadline < b->deadline; });
    if (order_.size() > o_.looked_at) order_.resize(o_.looked_at);
  }

  // What batch `b` of the order may become: every count, and with `cuts` also without its most urgent rows.
  void offer(std::size_t b, std::size_t cuts, double price) {
    const Waiting& batch = *order_[b];
    solve::tokens::Batch& made = batches_[b];
    made.options.clear();
    made.mean_utility = 0;
    for (const Query& row : batch.rows) made.mean_utility += row.utility / static_cast<double>(batch.rows.size());
    by_deadline_.assign(batch.rows.begin(), batch.rows.end());
    if (cuts > 1) {
      std::sort(by_deadline_.begin(), by_deadline_.end(),
                [](const Query& one, const Query& other) { return one.deadline < other.deadline; });
    }
    const std::size_t rows = by_deadline_.size();
    for (std::size_t cut = 0; cut < cuts; ++cut) {
      const std::size_t from = rows * cut / cuts;
      if (cut > 0 && (from == 0 || by_deadline_[from].deadline == by_deadline_[from - 1].deadline)) continue;
      const TimeNs deadline = cut == 0 ? batch.deadline : by_deadline_[from].deadline;
      kinds_.assign(o_.kinds.size(), 0);
      for (std::size_t i = from; i < rows; ++i) ++kinds_[by_deadline_[i].kind];
      for (std::size_t count = 0; count < counts_; ++count) {
        TimeNs time = o_.latency[count].at(1, static_cast<std::int64_t>(rows - from));
        if (b > 0) time /= o_.workers;  // those behind the first one are shared by all workers
        double utility = 0;
        for (std::size_t k = 0; k < kinds_.size(); ++k) {
          utility += static_cast<double>(kinds_[k]) * o_.kinds[k].utility * o_.kinds[k].accuracy[count];
        }
        made.options.push_back({time, utility - price * static_cast<double>(time) / kNsPerSecond, deadline});
      }
    }
  }

  // Utility per second of a worker that the next second would bring: the least price at which what arrives in it and
  // what waits fit into the workers' time (the dual of Eq. 1 as a fluid).
  double price(TimeNs now) {
    std::vector<double> weight(o_.kinds.size(), 0);
    for (std::size_t k = 0; k < weight.size(); ++k) weight[k] = rate(now, k);
    const double per_row = kNsPerSecond / static_cast<double>(o_.horizon);
    for (const Waiting& batch : queue_.batches()) {
      for (const Query& row : batch.rows) weight[row.kind] += per_row;
    }
    const auto fits = [&](double at) {
      double used = 0;
      for (std::size_t k = 0; k < weight.size(); ++k) {
        double best = 0;
        double time = 0;
        for (std::size_t count = 0; count < counts_; ++count) {
          const double gain = o_.kinds[k].utility * o_.kinds[k].accuracy[count] - at * per_row_[count];
          if (gain > best) {
            best = gain;
            time = per_row_[count];
          }
        }
        used += weight[k] * time;
      }
      return used <= o_.share * o_.workers;
    };
    if (fits(0)) return 0;
    double low = 0;
    double high = 1;
    while (!fits(high)) high *= 2;
    for (int i = 0; i < 30; ++i) {
      const double middle = (low + high) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }

  std::size_t usual(TimeNs now) const {
    double all = 0;
    for (std::size_t k = 0; k < recent_.size(); ++k) all += rate(now, k);
    for (const auto& [below, count] : o_.by_rate) {
      if (all < below * o_.workers) return count;
    }
    return 0;
  }

  // Plans, and begins to execute a batch on an idle worker: its time; 0 when all its rows were evicted instead, -1 when
  // the plan executes nothing.
  TimeNs serve(TimeNs now, std::size_t worker) {
    look();
    ++found_.plans;
    const bool ours = o_.policy == Policy::kExact || o_.policy == Policy::kPrice;
    std::size_t at = 0;
    std::size_t count = o_.fixed;
    if (o_.policy == Policy::kLoad) count = usual(now);
    TimeNs deadline = 0;  // rows that are due up to it are left out
    if (ours || o_.policy == Policy::kPrinted) {
      const double costs = o_.policy == Policy::kPrice ? price(now) : 0;
      if (batches_.size() < order_.size()) batches_.resize(order_.size());
      for (std::size_t b = 0; b < order_.size(); ++b) offer(b, ours ? kCuts : 1, costs);
      const std::span<const solve::tokens::Batch> all(batches_.data(), order_.size());
      if (ours) {
        exact_.plan(now, all, plan_);
      } else if (queue_.batches().size() <= o_.beta || now < o_.initial) {
        plan_ = solve::tokens::PlanManual(now, all, static_cast<int>(usual(now)), o_.kappa);
      } else {
        plan_ = solve::tokens::PlanPrinted(now, all);
      }
      while (at < order_.size() && plan_.choice[at] == solve::tokens::kEvict) ++at;
      if (at == order_.size()) return -1;
      const auto choice = static_cast<std::size_t>(plan_.choice[at]);
      count = choice % counts_;
      deadline = batches_[at].options[choice].deadline - 1;
    }
    return execute(now, worker, order_[at], count, deadline);
  }

  TimeNs execute(TimeNs now, std::size_t worker, std::list<Waiting>::iterator batch, std::size_t count,
                 TimeNs deadline) {
    drop(*batch, deadline);
    TimeNs time = 0;
    do {
      if (batch->rows.empty()) break;
      time = o_.latency[count].at(1, static_cast<std::int64_t>(batch->rows.size()));
      if (last_[worker] != counts_ && last_[worker] != count) time += o_.switching;
    } while (drop(*batch, now + time));
    if (batch->rows.empty()) {
      queue_.batches().erase(batch);
      return 0;
    }
    last_[worker] = count;
    if (o_.spread > 0) time = noisy(time, batch->rows.front().id);
    std::size_t right = 0;
    for (const Query& row : batch->rows) {
      const bool accurate = Draw(o_.seed, 2 * row.id) < o_.kinds[row.kind].accuracy[count];
      right += accurate ? 1 : 0;
      tally_answer(row, accurate, now + time);
    }
    if (now >= o_.warmup) {
      found_.rows[count] += batch->rows.size();
      ++found_.batches[count];
      ++found_.shares[100 * right / batch->rows.size()];
      found_.busy += time;
    }
    queue_.batches().erase(batch);
    return std::max<TimeNs>(time, 1);
  }

  void tally_answer(const Query& row, bool accurate, TimeNs end) {
    if (end >= row.deadline) {
      tally(row, 2);
    } else {
      tally(row, accurate ? 0 : 1);
    }
  }

  TimeNs noisy(TimeNs time, std::uint64_t id) const {  // Box and Muller; median 1
    const double radius = std::sqrt(-2 * std::log1p(-Draw(o_.seed, 2 * id + 1)));
    const double angle = 2 * std::numbers::pi * Draw(~o_.seed, 2 * id + 1);
    return static_cast<TimeNs>(static_cast<double>(time) * std::exp(o_.spread * radius * std::cos(angle)));
  }

  const Options& o_;
  std::span<const TimeNs> arrived_;
  std::span<const std::uint32_t> kind_;
  std::size_t counts_;
  solve::tokens::Queue queue_;
  std::vector<std::uint64_t> recent_;  // [kinds]: arrivals of the last window
  std::vector<TimeNs> idle_;           // [workers]: from when on
  std::vector<std::size_t> last_;      // [workers]: count of the batch before; counts_: none
  std::vector<double> per_row_;        // [counts]: seconds of a row in a full batch
  std::size_t next_ = 0;
  std::size_t oldest_ = 0;
  std::vector<std::list<Waiting>::iterator> order_;
  std::vector<solve::tokens::Batch> batches_;
  std::vector<Query> by_deadline_;
  std::vector<std::uint64_t> kinds_;
  solve::tokens::ExactPlanner exact_;
  solve::tokens::Plan plan_;
  Result found_;
};

}  // namespace

Result Run(const Options& options, std::span<const TimeNs> arrived, std::span<const std::uint32_t> kind) {
  return Server(options, arrived, kind).run();
}

}  // namespace arlo::simulate::tokens
