#include "solve/curve.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace arlo::solve {

Curve::Curve(std::vector<std::pair<int, double>> points) : points_(std::move(points)) {
  pieces_.push_back({0, 1, points_.front().second, 0});
  for (std::size_t k = 1; k < points_.size(); ++k) {
    const auto& [low, low_ms] = points_[k - 1];
    const auto& [high, high_ms] = points_[k];
    const double slope = (high_ms - low_ms) / (high - low);
    pieces_.push_back({static_cast<double>(low), static_cast<double>(high), low_ms - slope * low, slope});
  }
  const auto& [largest, ms] = points_.back();
  pieces_.push_back({static_cast<double>(largest), kInfinity, ms / 2, ms / 2 / largest});
}

double Curve::batch_ms(double rows) const {
  if (rows <= 1) return points_.front().second;
  const auto at = std::lower_bound(points_.begin(), points_.end(), rows,
                                   [](const std::pair<int, double>& point, double r) { return point.first < r; });
  if (at == points_.end()) return points_.back().second;
  const auto& [low, low_ms] = *(at - 1);
  const auto& [high, high_ms] = *at;
  return low_ms + (high_ms - low_ms) * (rows - low) / (high - low);
}

double Curve::mean_ms(double load) const {
  const auto& [largest, ms] = points_.back();
  if (load <= largest) return batch_ms(load);
  return ms * (load / largest + 1) / 2;
}

double Curve::least_marginal(double from, double to) const {
  double least = kInfinity;
  for (const Piece& piece : pieces_) {
    const double low = std::max(from, piece.from);
    const double high = std::min(to, piece.to);
    if (low > high) continue;
    // The derivative of B * (base + slope * B) is linear: its least value is at an end of the piece.
    least = std::min(least, piece.base + 2 * piece.slope * (piece.slope < 0 ? high : low));
  }
  return least;
}

bool Curve::rising() const {
  return std::all_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.slope >= 0; });
}

}  // namespace arlo::solve
