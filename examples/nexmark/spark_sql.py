"""The queries in Spark SQL, in batch over tables ``person``, ``auction`` and ``bid``.

Times are milliseconds, as in the events; ``time`` is the same as a timestamp. Columns
are in the order of the fields of our results. Where an order decides (who wins, who is
last) ties are broken as in our queries: then the answer does not depend on arrival.
"""

from __future__ import annotations

_WINNERS = """
select * from (
  select
    a.id as auction, a.item_name, a.date_time as opened, a.expires, a.seller,
    a.category, b.bidder, b.price, b.date_time, b.extra,
    row_number() over (
      partition by a.id order by b.price desc, b.date_time, b.bidder, b.extra
    ) as place
  from auction a join bid b
    on b.auction = a.id and b.date_time between a.date_time and a.expires
) where place = 1
"""

_BY_RANK = """
count(*) as total_bids,
count_if(price < 10000) as rank1_bids,
count_if(price >= 10000 and price < 1000000) as rank2_bids,
count_if(price >= 1000000) as rank3_bids
"""


def _distinct(field: str) -> str:
    return f"""
    count(distinct {field}),
    count(distinct {field}) filter (where price < 10000),
    count(distinct {field}) filter (where price >= 10000 and price < 1000000),
    count(distinct {field}) filter (where price >= 1000000)
    """


SQL = {
    "q0": "select auction, bidder, price, channel, url, date_time, extra from bid",
    "q1": "select auction, bidder, 0.908D * price, date_time, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id
        from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    "q4": f"select category, avg(price) from ({_WINNERS}) group by category",
    "q5": """
        with counts as (
          select auction, count(*) as bids, window.end as window_end
          from bid group by auction, window(time, '10 seconds', '2 seconds')
        ), most as (
          select window_end, max(bids) as bids from counts group by window_end
        )
        select auction, bids, unix_millis(window_end)
        from counts join most using (window_end, bids)
    """,
    "q6": f"""
        select seller, auction, avg(price) over (
          partition by seller order by expires, auction
          rows between 9 preceding and current row
        ) from ({_WINNERS})
    """,
    "q7": """
        with highest as (
          select window, max(price) as price from bid group by window(time, '10 seconds')
        )
        select b.auction, b.price, b.bidder, b.date_time, b.extra
        from bid b join highest h on b.price = h.price
          and b.time >= h.window.start and b.time < h.window.end
    """,
    "q8": """
        with registered as (
          select id, name, window(time, '10 seconds') as window from person
        ), sold as (
          select distinct seller, window(time, '10 seconds') as window from auction
        )
        select p.id, p.name, unix_millis(p.window.start)
        from registered p join sold a on p.id = a.seller and p.window = a.window
    """,
    "q9": f"""
        select auction, item_name, opened, expires, seller, category, bidder, price,
          date_time, extra
        from ({_WINNERS})
    """,
    "q10": """
        select auction, bidder, price, date_time, extra,
          date_format(time, 'yyyy-MM-dd'), date_format(time, 'HH:mm')
        from bid
    """,
    "q11": """
        select bidder, count(*), unix_millis(session_window.start),
          unix_millis(session_window.end)
        from bid group by bidder, session_window(time, '10 seconds')
    """,
    "q13": """
        select b.auction, b.bidder, b.price, b.date_time, s.value
        from bid b join side_input s on b.auction % 10000 = s.key
    """,
    "q14": """
        select auction, bidder, 0.908D * price,
          case
            when hour(time) between 8 and 18 then 'dayTime'
            when hour(time) <= 6 or hour(time) >= 20 then 'nightTime'
            else 'otherTime'
          end,
          date_time, extra, length(extra) - length(replace(extra, 'c', ''))
        from bid where 0.908D * price > 1000000 and 0.908D * price < 50000000
    """,
    "q15": f"""
        select date_format(time, 'yyyy-MM-dd') as day,
          {_BY_RANK}, {_distinct("bidder")}, {_distinct("auction")}
        from bid group by day
    """,
    "q16": f"""
        select channel, date_format(time, 'yyyy-MM-dd') as day,
          max(date_format(time, 'HH:mm')),
          {_BY_RANK}, {_distinct("bidder")}, {_distinct("auction")}
        from bid group by channel, day
    """,
    "q17": f"""
        select auction, date_format(time, 'yyyy-MM-dd') as day,
          {_BY_RANK}, min(price), max(price), avg(price), sum(price)
        from bid group by auction, day
    """,
    "q18": """
        select auction, bidder, price, channel, url, date_time, extra from (
          select *, row_number() over (
            partition by bidder, auction
            order by date_time desc, price desc, channel desc, url desc, extra desc
          ) as age from bid
        ) where age = 1
    """,
    "q19": """
        select auction, place, bidder, price, date_time, extra from (
          select *, row_number() over (
            partition by auction order by price desc, date_time, bidder, extra
          ) as place from bid
        ) where place <= 10
    """,
    "q20": """
        select b.auction, b.bidder, b.price, b.date_time, b.extra, a.item_name,
          a.expires, a.seller
        from bid b join auction a on b.auction = a.id where a.category = 10
    """,
    "q21": """
        with found as (
          select *, lower(channel) as known,
            regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) as told from bid
        )
        select auction, bidder, price, channel,
          case known
            when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
            when 'baidu' then '3' else told
          end
        from found
        where told <> '' or known in ('apple', 'google', 'facebook', 'baidu')
    """,
    "q22": """
        select auction, bidder, price, channel, split_part(url, '/', 4),
          split_part(url, '/', 5), split_part(url, '/', 6)
        from bid
    """,
}
