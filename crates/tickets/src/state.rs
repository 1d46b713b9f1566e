//! Where a reservation stands, apart from its order, its payment and its tickets.

/// Where the place of one order line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationStatus {
    /// Kept until its time is over.
    Held,
    /// Paid for: it never comes back.
    Confirmed,
    /// Given back, its time being over or its order having ended.
    Released,
    /// Paid for after it was given back and sold to others.
    Lost,
}

/// What can happen to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// Its order is paid.
    Paid,
    /// Its time is over: by itself, or since its order ended.
    Lapsed,
    /// Its order is paid, and its places are free again or still.
    Retaken,
    /// Its order is paid, and its places are others'.
    SoldOut,
}

impl ReservationStatus {
    /// Every value.
    pub const ALL: [Self; 4] = [Self::Held, Self::Confirmed, Self::Released, Self::Lost];

    /// The name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Confirmed => "confirmed",
            Self::Released => "released",
            Self::Lost => "lost",
        }
    }

    /// Where `what` takes it; `None` where it stays. The trigger `reservations_status_moves` repeats this; a test compares.
    #[must_use]
    pub fn after(self, what: Happening) -> Option<Self> {
        match (self, what) {
            (Self::Held, Happening::Paid | Happening::Retaken) | (Self::Released, Happening::Retaken) => Some(Self::Confirmed),
            (Self::Held, Happening::Lapsed) => Some(Self::Released),
            (Self::Released, Happening::SoldOut) => Some(Self::Lost),
            (Self::Held, Happening::SoldOut) // what is held has its place
            | (Self::Released, Happening::Paid | Happening::Lapsed) // whoever mints looks for a place
            | (Self::Confirmed | Self::Lost, Happening::Paid | Happening::Lapsed | Happening::Retaken | Happening::SoldOut) => None,
        }
    }
}

impl Happening {
    /// Every value.
    pub const ALL: [Self; 4] = [Self::Paid, Self::Lapsed, Self::Retaken, Self::SoldOut];
}
