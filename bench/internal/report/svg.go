package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// chart is bars in groups, each with a whisker from the least to the most and a text, and perhaps a bound that all
// bars should reach.
type chart struct {
	title, describes string
	groups           []group
	least, most      float64 // of an axis that is logarithmic; else it is linear from 0
	bound            bool    // at 1 of the axis
	boundText        string
}

type group struct {
	title string
	bars  []bar
}

type bar struct {
	label          string
	value          float64
	least, most    float64
	text           string
	class          string // of its colour: ours, other, met, missed
	hasNoAxisValue bool   // there is a text and no bar
}

// The layout, in pixels.
const (
	chartWidth = 880
	labelWidth = 250
	textWidth  = 190
	barHeight  = 16
	rowHeight  = 24
	groupGap   = 34
	topGap     = 54
)

const chartStyle = `
    .card { fill: #ffffff; stroke: #d0d7de; } .ink { fill: #1f2328; } .soft { fill: #59636e; }
    .ours { fill: #0a5fc2; } .other { fill: #8c959f; } .met { fill: #1a7f37; } .missed { fill: #c4232d; }
    .whisker { stroke: #1f2328; } .bound { stroke: #7a3fc4; } .bound-ink { fill: #7a3fc4; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; } .ink { fill: #e6edf3; } .soft { fill: #9da7b1; }
      .ours { fill: #2f7de0; } .other { fill: #6e7681; } .met { fill: #3fb950; } .missed { fill: #ff7b72; }
      .whisker { stroke: #e6edf3; } .bound { stroke: #a97be8; } .bound-ink { fill: #a97be8; }
    }
`

// svg draws the chart.
func (c chart) svg() string {
	height := topGap + 16
	for _, g := range c.groups {
		height += groupGap + len(g.bars)*rowHeight
	}
	if c.bound {
		height += rowHeight
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="13">`+"\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprintf(&b, "  <title id=\"title\">%s</title>\n  <desc id=\"desc\">%s</desc>\n  <style>%s  </style>\n",
		escaped(c.title), escaped(c.describes), chartStyle)
	fmt.Fprintf(&b, "  <rect class=\"card\" x=\".5\" y=\".5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", chartWidth-1,
		height-1)
	fmt.Fprintf(&b, "  <text class=\"ink\" x=\"20\" y=\"30\" font-size=\"16\" font-weight=\"600\">%s</text>\n",
		escaped(c.title))
	fmt.Fprintf(&b, "  <text class=\"soft\" x=\"20\" y=\"49\">%s</text>\n", escaped(c.describes))
	y := topGap
	if c.bound {
		y += rowHeight
	}
	top := y
	for _, g := range c.groups {
		at := c.axis(g)
		fmt.Fprintf(&b, "  <text class=\"ink\" x=\"20\" y=\"%d\" font-weight=\"600\">%s</text>\n", y+groupGap-12,
			escaped(g.title))
		y += groupGap
		for _, bar := range g.bars {
			bar.draw(&b, y, at, c.bound)
			y += rowHeight
		}
	}
	if c.bound && len(c.groups) > 0 {
		x := c.axis(c.groups[0])(1)
		fmt.Fprintf(&b, "  <path class=\"bound\" d=\"M%.1f %dV%d\" stroke-width=\"2\" stroke-dasharray=\"5 3\"/>\n", x,
			top, y)
		fmt.Fprintf(&b, "  <text class=\"bound-ink\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
			x, top-6, escaped(c.boundText))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis gives the place of a value. A linear axis fits its group; a logarithmic one is the same for all groups.
func (c chart) axis(g group) func(float64) float64 {
	width := float64(chartWidth - labelWidth - textWidth)
	if c.most > 0 {
		return func(v float64) float64 {
			return labelWidth + width*math.Log(min(max(v, c.least), c.most)/c.least)/math.Log(c.most/c.least)
		}
	}
	most := 0.0
	for _, bar := range g.bars {
		if !bar.hasNoAxisValue {
			most = max(most, bar.most, bar.value)
		}
	}
	if most == 0 {
		most = 1
	}
	return func(v float64) float64 { return labelWidth + width*min(max(v, 0), most)/most }
}

// draw puts the text behind the bar or, if a line goes down through all of them, at the right.
func (s bar) draw(b *strings.Builder, y int, at func(float64) float64, atRight bool) {
	fmt.Fprintf(b, "  <text class=\"ink\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
		labelWidth-10, y+barHeight-3, escaped(s.label))
	end := float64(labelWidth)
	if !s.hasNoAxisValue {
		end = at(s.value)
		fmt.Fprintf(b, "  <rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n",
			s.class, labelWidth, y, max(end-labelWidth, 1), barHeight)
		if s.least < s.most {
			middle := float64(y) + barHeight/2.0
			fmt.Fprintf(b, "  <path class=\"whisker\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6\" fill=\"none\"/>\n",
				at(s.least), middle, at(s.most), at(s.least), middle-3, at(s.most), middle-3)
			end = max(end, at(s.most))
		}
	}
	if atRight {
		end = chartWidth - textWidth
	}
	fmt.Fprintf(b, "  <text class=\"soft\" x=\"%.1f\" y=\"%d\">%s</text>\n", end+8, y+barHeight-3, escaped(s.text))
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
